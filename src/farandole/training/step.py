"""One update: rows → outputs → loss → gradients → parameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data import Columns, Shard
from farandole.errors import InputError
from farandole.ragged import Ragged
from farandole.training.losses import Loss
from farandole.training.metrics import Tally
from farandole.training.norms import Norms
from farandole.training.precision import Precision


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


class Batcher:
    """Row numbers → batches."""

    def __init__(
        self,
        shard: Shard,
        columns: Columns,
        signature: Signature,
        loss: Loss,
        class_weights: Sequence[float] | None,
        device: str,
    ) -> None:
        self._columns = columns
        self._signature = signature
        self._device = device
        self._shard = shard
        self._loss = loss
        self._class_weights = None
        if class_weights is not None:
            self._class_weights = torch.tensor(class_weights, dtype=torch.float64, device=device)

    @property
    def head(self) -> str:
        """How outputs become predictions."""
        return self._signature.head

    def __call__(self, rows: torch.Tensor | slice) -> Batch:
        """The batch of these rows: by number, or a slice of the shard, which copies nothing."""
        names, device = self._columns.features, self._device
        columns = [self._shard.take(name, rows).to(device) for name in names]
        targets = [
            as_target(self._fixed(name, rows), self._loss, number, self._signature)
            for number, name in enumerate(self._columns.labels)
        ]
        arguments = self._signature.arguments(columns)
        count = len(range(len(self._shard))[rows] if isinstance(rows, slice) else rows)
        return Batch(count, arguments, targets, self._row_weights(rows, targets))

    def _fixed(self, name: str, rows: torch.Tensor | slice) -> torch.Tensor:
        return self._shard.take_tensor(name, rows).to(self._device)

    def _row_weights(
        self, rows: torch.Tensor | slice, targets: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        weights = None
        if self._columns.weight is not None:
            weights = self._fixed(self._columns.weight, rows).double()
        if self._class_weights is None:
            return weights
        by_class = self._class_weights[targets[0].long()]
        return by_class if weights is None else weights * by_class


def as_target(label: torch.Tensor, loss: Loss, number: int, signature: Signature) -> torch.Tensor:
    """Labels in the type that the loss wants; a callable gets them as they are."""
    kind = loss.kind_of(number)
    if kind is None:
        return label
    if kind.takes_classes and (label.dim() == 1 or not label.is_floating_point()):
        return label.long()
    return label.to(getattr(torch, signature.floating))


class Passes(Protocol):
    """Forward and backward passes, as the loops call them."""

    @property
    def is_joint(self) -> bool:
        """Whether all workers have to take each pass together, even those without rows."""
        ...

    def learn(self, batch: Batch, tally: Tally) -> tuple[float, float]:
        """Add the gradients of a batch's summed loss to those that are there; loss and weight."""
        ...

    def evaluate(self, batch: Batch, tally: Tally) -> None:
        """Only count."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        ...


class Stepper:
    """Forward and backward passes of one network that is here as a whole."""

    def __init__(self, network: nn.Module, loss: Loss, precision: str, device: str) -> None:
        self._network = network
        self._loss = loss
        self._precision = Precision(precision, device)
        self._norms = Norms(network)
        self.is_joint = self._norms.are_joint
        self._stand_in: Batch | None = None

    def join(self, stand_in: Batch) -> None:
        """Take each pass together with the other workers, even without rows.

        The network then gets a few that count for nothing: not every one can do with none (`view`
        doesn't know what -1 is of no elements). Norms over all workers do need none at all.
        """
        if not self.is_joint:
            self.is_joint, self._stand_in = True, stand_in

    def forward(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """Outputs, and the weighted sum of the rows' losses."""
        with self.autocast():
            if batch.rows == 0:  # a mean over nothing would be NaN
                output = self._network(*(self._stand_in or batch).arguments)
                return output, _nothing(output)
            output = self._network(*batch.arguments)
            losses = self._loss.rows(output, batch.targets)
        if losses.dim() > 0:
            if batch.weights is None:
                return output, losses.sum()
            return output, (losses * batch.weights.to(losses.dtype)).sum()
        if batch.weights is not None:
            raise InputError(
                "Weights need a loss for each row: let the loss return a tensor with one value a "
                'row (reduction="none"), not their mean.'
            )
        return output, losses * batch.rows

    def learn(self, batch: Batch, tally: Tally) -> tuple[float, float]:
        """Add the gradients of a batch's summed loss to those that are there; loss and weight."""
        with self._normalised(batch):
            output, loss = self.forward(batch)
        loss.backward()
        return self._count(batch, output, loss, tally)

    def evaluate(self, batch: Batch, tally: Tally) -> None:
        """Only count."""
        with torch.no_grad():
            output, loss = self.forward(batch)
        self._count(batch, output, loss, tally)

    def _count(
        self, batch: Batch, output: Any, loss: torch.Tensor, tally: Tally
    ) -> tuple[float, float]:
        if batch.rows == 0:
            return 0.0, 0.0
        total, weight = float(loss.detach()), batch.weight
        tally.add(total, weight, output, batch.targets, batch.weights)
        return total, weight

    def _normalised(self, batch: Batch) -> AbstractContextManager[None]:
        if batch.rows == 0 and self._stand_in is not None:
            return self._norms.at_rest()
        return self._norms.seeing_one() if batch.rows <= 1 else nullcontext()

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        return self._precision.autocast()


def _nothing(output: Any) -> torch.Tensor:
    """A loss of zero that still leads back through the whole network."""
    outputs = output if isinstance(output, tuple | list) else [output]
    return torch.stack([one.sum() for one in outputs]).sum() * 0
