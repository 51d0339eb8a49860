"""One update: rows → outputs → loss → gradients → parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from farandole.artifact import Signature
from farandole.data.loader import gather
from farandole.data.schema import Columns
from farandole.data.shards import Shard
from farandole.errors import InputError
from farandole.training.losses import Loss
from farandole.training.metrics import Tally


@dataclass(frozen=True)
class Batch:
    """Some rows, ready for the network."""

    arguments: Sequence[torch.Tensor]
    targets: Sequence[torch.Tensor]
    weights: torch.Tensor


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
        self._features = [shard.columns[name] for name in columns.features]
        self._labels = [
            _as_target(shard.columns[name], loss, number, signature)
            for number, name in enumerate(columns.labels)
        ]
        self._weights = shard.columns[columns.weight].double() if columns.weight else None
        self._class_weights = None
        if class_weights is not None:
            self._class_weights = torch.tensor(class_weights, dtype=torch.float64, device=device)

    def __call__(self, rows: torch.Tensor) -> Batch:
        """The batch of these rows."""
        columns = [gather(column, rows, self._device) for column in self._features]
        targets = [gather(label, rows, self._device) for label in self._labels]
        return Batch(self._signature.arguments(columns), targets, self._row_weights(rows, targets))

    def _row_weights(self, rows: torch.Tensor, targets: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._weights is None:
            weights = torch.ones(len(rows), dtype=torch.float64, device=self._device)
        else:
            weights = gather(self._weights, rows, self._device)
        if self._class_weights is not None:
            weights = weights * self._class_weights[targets[0].long()]
        return weights


def _as_target(label: torch.Tensor, loss: Loss, number: int, signature: Signature) -> torch.Tensor:
    """Labels in the type that the loss wants; a callable gets them as they are."""
    kind = loss.kind_of(number)
    if kind is None:
        return label
    if kind.takes_classes and (label.dim() == 1 or not label.is_floating_point()):
        return label.long()
    return label.to(getattr(torch, signature.floating))


class Stepper:
    """Forward and backward passes of one network."""

    def __init__(
        self, network: nn.Module, loss: Loss, precision: str, device: str, weighted: bool
    ) -> None:
        self._network = network
        self._loss = loss
        self._device = device.split(":")[0]
        self._bfloat16 = precision == "bfloat16"
        self._weighted = weighted
        self._norms = [m for m in network.modules() if isinstance(m, _BatchNorm)]

    def forward(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """Outputs, and the weighted sum of the rows' losses."""
        with self._autocast():
            output = self._network(*batch.arguments)
            losses = self._loss.rows(output, batch.targets)
        if losses.dim() > 0:
            if not self._weighted:
                return output, losses.sum()
            return output, (losses * batch.weights.to(losses.dtype)).sum()
        if self._weighted:
            raise InputError(
                "Weights need a loss for each row: let the loss return a tensor with one value a "
                'row (reduction="none"), not their mean.'
            )
        return output, losses * len(batch.weights)

    def learn(self, batch: Batch, tally: Tally) -> torch.Tensor:
        """Add the gradients of a batch's summed loss to those that are there."""
        with self._normalised(len(batch.weights)):
            output, loss = self.forward(batch)
        loss.backward()
        tally.add(loss, output, batch.targets, batch.weights)
        return loss.detach()

    @contextmanager
    def _normalised(self, rows: int) -> Iterator[None]:
        """One row has no statistics: those of the rows before it stand in."""
        norms = [norm for norm in self._norms if norm.training] if rows == 1 else []
        for norm in norms:
            norm.eval()
        yield
        for norm in norms:
            norm.train()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._bfloat16:
            return torch.autocast(self._device, dtype=torch.bfloat16)
        return nullcontext()
