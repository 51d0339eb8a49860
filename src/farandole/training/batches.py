"""Row numbers → batches of tensors, ready for the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from farandole.artifact import Signature
from farandole.data import Columns, Shard
from farandole.ragged import Ragged
from farandole.training.losses import CLASSES, Loss


@dataclass(frozen=True)
class Batch:
    """Some rows, ready for the network."""

    rows: int
    arguments: Sequence[Any]
    """Tensors, or `Ragged` rows; a dict of them; None for what the network does without."""
    targets: Sequence[Any]
    """The labels, or, where there are none, the arguments."""
    weights: torch.Tensor | None
    """A weight a row; None where all are one."""

    @property
    def weight(self) -> float:
        """The sum of weights."""
        return float(self.rows) if self.weights is None else float(self.weights.sum())


@dataclass(frozen=True)
class Batcher:
    """Makes batches of a shard's rows."""

    shard: Shard
    columns: Columns
    signature: Signature
    loss: Loss
    class_weights: Sequence[float] | None
    device: str

    def __call__(self, rows: torch.Tensor | slice) -> Batch:
        """The batch of these rows: by number, or a slice of the shard, which copies nothing."""
        targets = [
            self._target(name, rows, number) for number, name in enumerate(self.columns.labels)
        ]
        arguments = self._joined(rows) or self.signature.arguments(
            [self.shard.take(name, rows).to(self.device) for name in self.columns.features]
        )
        if not targets:  # without a label, what is learned is the input
            targets = [self._as_learned(one) for one in arguments]
        count = len(range(len(self.shard))[rows] if isinstance(rows, slice) else rows)
        return Batch(count, arguments, targets, self._row_weights(rows, targets))

    def _target(self, name: str, rows: torch.Tensor | slice, number: int) -> Any:
        taken = self.shard.take(name, rows).to(self.device)
        if isinstance(taken, Ragged):
            values = as_target(taken.values, self.loss, number, self.signature)
            return replace(taken, values=values)
        return as_target(taken, self.loss, number, self.signature)

    def _as_learned(self, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        return as_target(argument, self.loss, 0, self.signature)

    def _joined(self, rows: torch.Tensor | slice) -> list[torch.Tensor | Ragged] | None:
        """What a network takes as one tensor, where it is kept as one: thousands of columns may."""
        if not self.signature.stacked or isinstance(rows, slice):
            return None
        values = self.shard.take_joined(self.columns.features, rows)
        if values is None:
            return None
        if self.signature.floated or values.is_floating_point():
            values = values.to(getattr(torch, self.signature.floating))
        return [values.to(self.device)]

    def _tensor(self, name: str, rows: torch.Tensor | slice) -> torch.Tensor:
        return self.shard.take_tensor(name, rows).to(self.device)

    def _row_weights(
        self, rows: torch.Tensor | slice, targets: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        weights = None
        if self.columns.weight is not None:
            weights = self._tensor(self.columns.weight, rows).double()
        if self._weight_of_class is None:
            return weights
        by_class = self._weight_of_class[targets[0].long()]
        return by_class if weights is None else weights * by_class

    @cached_property
    def _weight_of_class(self) -> torch.Tensor | None:
        if self.class_weights is None:
            return None
        return torch.tensor(self.class_weights, dtype=torch.float64, device=self.device)


def as_target(label: torch.Tensor, loss: Loss, number: int, signature: Signature) -> torch.Tensor:
    """Labels in the type that the loss wants; a callable gets them as they are.

    Unless the task was given: then it gets class numbers as int64, and all else as floating point.
    """
    kind = loss.label_kind(number)
    if kind is None:
        return label
    classes = kind in CLASSES
    if classes and (label.dim() == 1 or not label.is_floating_point()):
        return label.long()
    return label.to(getattr(torch, signature.floating))
