"""Row numbers → batches of tensors, ready for the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from farandole.artifact import Signature
from farandole.data import Columns, Shard
from farandole.ragged import Ragged
from farandole.training.losses import Loss


@dataclass(frozen=True)
class Batch:
    """Some rows, ready for the network."""

    rows: int
    arguments: Sequence[torch.Tensor | Ragged]
    targets: Sequence[torch.Tensor]
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
        columns = [self.shard.take(name, rows).to(self.device) for name in self.columns.features]
        targets = [
            as_target(self._tensor(name, rows), self.loss, number, self.signature)
            for number, name in enumerate(self.columns.labels)
        ]
        arguments = self.signature.arguments(columns)
        count = len(range(len(self.shard))[rows] if isinstance(rows, slice) else rows)
        return Batch(count, arguments, targets, self._row_weights(rows, targets))

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
    """Labels in the type that the loss wants; a callable gets them as they are."""
    kind = loss.kind_of(number)
    if kind is None:
        return label
    if kind.takes_classes and (label.dim() == 1 or not label.is_floating_point()):
        return label.long()
    return label.to(getattr(torch, signature.floating))
