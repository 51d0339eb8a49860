"""torchmetrics objects, with their states merged over workers, of which some may have no rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from farandole.artifact import Head
from farandole.parallel import gather_objects
from farandole.world import World


class TorchMetric:
    """A torchmetrics object that counts the outputs of a head."""

    def __init__(self, metric: Any, head: Head) -> None:
        self._metric, self._head = copy.deepcopy(metric), head
        self._metric.sync_on_compute = False  # we merge: a worker may have no rows at all
        self._metric.reset()
        names = [kind.__name__ for kind in type(metric).__mro__]
        binary = any(name.startswith("Binary") for name in names)
        self._of_second = binary and head.is_classifier and head.outputs == 2

    def update(
        self, output: torch.Tensor, target: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Count a batch; torchmetrics knows no weights."""
        del weights
        scores, classes = as_torchmetrics(output, target, self._head.kind)
        if self._of_second:  # a metric of two classes takes the probability of the second
            scores = scores[:, 1]
        if self._metric.device != scores.device:  # where the network is
            self._metric = self._metric.to(scores.device)
        self._metric.update(scores, classes)

    def state(self) -> list[dict[str, Any]]:
        """What the object has seen so far, and those inside of it."""
        return [
            {"count": one._update_count, **{name: getattr(one, name) for name in one._defaults}}
            for one in _with_states(self._metric)
        ]

    def add_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Count what another one has seen."""
        other = copy.deepcopy(self._metric)
        for one, part in zip(_with_states(other), state, strict=True):
            for name in one._defaults:
                setattr(one, name, part[name])
            one._update_count = part["count"]
        other = other.to(self._metric.device)
        merged = merge([one for one in (self._metric, other) if one.update_called])
        self._metric = self._metric if merged is None else merged

    def value(self, world: World) -> torch.Tensor:
        """The metric over all workers."""
        found: torch.Tensor = self._merged(world).compute()
        return found

    def _merged(self, world: World) -> Any:
        if world.size == 1:
            return self._metric
        self._metric = self._metric.to("cpu")  # others may have no such device
        seen = self._metric if self._metric.update_called else None
        gathered = gather_objects(seen, world)
        return merge([part for part in gathered if part is not None]) or self._metric


def _with_states(metric: Any) -> list[Any]:
    return [one for one in metric.modules() if hasattr(one, "_defaults")]


def as_torchmetrics(
    output: torch.Tensor, target: torch.Tensor, head: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and class numbers.

    torchmetrics takes scores for probabilities in any batch where all of them happen to lie
    between 0 and 1, so it must never see a score.
    """
    if output.shape != target.shape and output.numel() == target.numel():
        output = output.reshape(target.shape)
    if head in ("sigmoid", "sigmoids"):
        return output.sigmoid(), target.long()
    if head in ("softmax", "log_softmax"):
        classes = target.long() if target.dim() < output.dim() else target
        return (output.softmax(1) if head == "softmax" else output.exp()), classes
    return output, target


def merge(parts: Sequence[Any]) -> Any:
    """One torchmetrics object out of those of several workers; None out of none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    merged = parts[0]
    if merged.full_state_update or merged.dist_sync_on_step:
        return _stacked(parts)
    for part in parts[1:]:
        merged.merge_state(part)
    return merged


def _stacked(parts: Sequence[Any]) -> Any:
    """As torchmetrics itself does it for metrics whose `compute` takes the states of all."""
    merged = parts[0]
    for name, reduction in merged._reductions.items():
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], list):
            setattr(merged, name, [value for part in values for value in part])
        else:
            stacked = torch.stack(values)
            setattr(merged, name, stacked if reduction is None else reduction(stacked))
    return merged
