"""Metrics as sums, so that workers with uneven shards add up to the right answer.

All of them cost one all-reduce an epoch together.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from farandole.errors import InputError
from farandole.parallel import gather_objects
from farandole.training.losses import Loss, align
from farandole.world import World

Update = Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]
"""(output, target, head) -> one number a row."""


def _accuracy(output: torch.Tensor, target: torch.Tensor, head: str) -> torch.Tensor:
    if head in ("sigmoid", "sigmoids"):
        right = (output.reshape(target.shape) > 0) == (target > 0.5)
    else:
        classes = target.argmax(1) if target.is_floating_point() else target  # or probabilities
        right = output.argmax(1) == classes
    return right if right.dim() == 1 else right.reshape(len(target), -1).double().mean(1)


def _error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.reshape(target.shape) - target).reshape(len(target), -1).double()


NAMES: dict[str, Update] = {
    "accuracy": _accuracy,
    "mae": lambda output, target, head: _error(output, target).abs().mean(1),
    "mse": lambda output, target, head: _error(output, target).square().mean(1),
}


def resolve(metrics: Sequence[Any] | Mapping[str, Any] | None, loss: Loss) -> dict[str, Any]:
    """Metrics by the name they have in the history.

    >>> from farandole.training import losses
    >>> list(resolve(None, losses.resolve("cross_entropy")))
    ['accuracy']
    """
    if metrics is None:
        single = len(loss.parts) == 1
        names = ["accuracy" if loss.head != "identity" else "mae"] if single else []
        return {name: NAMES[name] for name in names}
    if isinstance(metrics, str):
        metrics = [metrics]
    pairs = metrics.items() if isinstance(metrics, Mapping) else [(_name(m), m) for m in metrics]
    chosen = {}
    for name, metric in pairs:
        if name == "loss":
            continue  # always there
        chosen[name] = _resolve_one(name, metric)
    return chosen


def _resolve_one(name: str, metric: Any) -> Any:
    if isinstance(metric, str):
        if metric not in NAMES:
            raise InputError(
                f"There is no metric {metric!r}. There are {', '.join(NAMES)}; or pass a "
                "torchmetrics object."
            )
        return NAMES[metric]
    if all(hasattr(metric, part) for part in ("update", "compute", "reset", "merge_state")):
        return metric
    raise InputError(f"The metric {name!r} is neither a name nor a torchmetrics object: {metric!r}")


def _name(metric: Any) -> str:
    if isinstance(metric, str):
        return metric
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()


class Tally:
    """The running sums of one pass over some rows."""

    def __init__(self, metrics: Mapping[str, Any], head: str) -> None:
        self._head = head
        self._sums: dict[str, Update] = {k: m for k, m in metrics.items() if not _is_object(m)}
        self._objects = {k: copy.deepcopy(m) for k, m in metrics.items() if _is_object(m)}
        for metric in self._objects.values():
            metric.sync_on_compute = False  # we merge ourselves: a worker may have no rows at all
            metric.reset()
        self._loss = self._weight = 0.0
        self._totals = [0.0] * len(self._sums)

    def add(
        self,
        loss: float,
        weight: float,
        output: Any,
        targets: Sequence[torch.Tensor],
        weights: torch.Tensor | None,
    ) -> None:
        """Count one batch: `loss` and `weight` are sums over its rows; no weights mean all ones."""
        self._loss += loss
        self._weight += weight
        if not (self._sums or self._objects):
            return
        outputs, aligned = align(output, targets)
        first, target = _at_least_float32(outputs[0].detach()), aligned[0]
        for number, update in enumerate(self._sums.values()):
            rows = update(first, target, self._head)
            self._totals[number] += float((rows if weights is None else rows * weights).sum())
        for metric in self._objects.values():
            metric.update(*_as_torchmetrics(first, target, self._head))

    def state(self) -> dict[str, Any]:
        """The sums so far, as plain values and tensors."""
        sums = [self._loss, self._weight, *self._totals]
        return {"sums": sums, "objects": {k: _states(m) for k, m in self._objects.items()}}

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Count what another tally had counted."""
        loss, weight, *totals = state["sums"]
        self._loss, self._weight = self._loss + loss, self._weight + weight
        self._totals = [a + b for a, b in zip(self._totals, totals, strict=True)]
        for name, metric in self._objects.items():
            other = copy.deepcopy(metric)
            _load_states(other, state["objects"][name])
            merged = merge([one for one in (metric, other) if one.update_called])
            self._objects[name] = metric if merged is None else merged

    def result(
        self, prefix: str, reduce_sums: Callable[[torch.Tensor], torch.Tensor], world: World
    ) -> dict[str, float]:
        """The values over all workers, as columns of the history."""
        mine = torch.tensor([self._loss, self._weight, *self._totals], dtype=torch.float64)
        loss, weight, *sums = reduce_sums(mine).tolist()
        nan = float("nan")
        row = {f"{prefix}_loss": loss / weight if weight else nan}
        for name, total in zip(self._sums, sums, strict=True):
            row[f"{prefix}_{name}"] = total / weight if weight else nan
        for name, metric in self._objects.items():
            row |= _numbered(f"{prefix}_{name}", _merged(metric, world).compute())
        return row


def _states(metric: Any) -> list[dict[str, Any]]:
    """What a torchmetrics object has seen so far, and those inside of it."""
    parts = [one for one in metric.modules() if hasattr(one, "_defaults")]
    return [
        {"count": one._update_count, **{name: getattr(one, name) for name in one._defaults}}
        for one in parts
    ]


def _load_states(metric: Any, states: Sequence[Mapping[str, Any]]) -> None:
    parts = [one for one in metric.modules() if hasattr(one, "_defaults")]
    for one, state in zip(parts, states, strict=True):
        for name in one._defaults:
            setattr(one, name, state[name])
        one._update_count = state["count"]


def _at_least_float32(output: torch.Tensor) -> torch.Tensor:
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def _as_torchmetrics(
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
    if head == "softmax":
        return output.softmax(1), target
    return (output.exp() if head == "log_softmax" else output), target


def _numbered(name: str, value: torch.Tensor) -> dict[str, float]:
    """A metric with a value for each class fills a column for each."""
    if value.numel() == 1:
        return {name: float(value)}
    return {f"{name}_{number}": float(part) for number, part in enumerate(value.reshape(-1))}


def _is_object(metric: Any) -> bool:
    return hasattr(metric, "compute")


def _merged(metric: Any, world: World) -> Any:
    if world.size == 1:
        return metric
    gathered = gather_objects(metric if metric.update_called else None, world)
    return merge([part for part in gathered if part is not None]) or metric


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
