"""Forward and backward passes: a batch → outputs → loss → gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from farandole.errors import InputError
from farandole.training.batch_norm import BatchNorms
from farandole.training.batches import Batch
from farandole.training.losses import Loss
from farandole.training.metrics import Tally
from farandole.training.precision import autocast


class Passes(Protocol):
    """Forward and backward passes, as the training loops call them."""

    @property
    def is_collective(self) -> bool:
        """Whether all workers have to make each pass together, even those without rows."""
        ...

    def forward_backward(self, batch: Batch, tally: Tally) -> tuple[float, float]:
        """Add a batch's gradients to those that are there; gives its summed loss and weight."""
        ...

    def evaluate(self, batch: Batch, tally: Tally) -> None:
        """Only count loss and metrics."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        ...


class NetworkPasses:
    """Passes through a network that is whole on this worker."""

    def __init__(self, network: nn.Module, loss: Loss, precision: str, device: str) -> None:
        self._network = network
        self._loss = loss
        self._precision, self._device = precision, device
        self._norms = BatchNorms(network)
        self.is_collective = self._norms.are_synchronized
        self._placeholder: Batch | None = None

    def make_collective(self, placeholder: Batch) -> None:
        """Make each pass together with the other workers, even without rows.

        The network then gets the placeholder's rows, which count for nothing: not every network
        takes a batch of no rows (`view` can't infer -1 of no elements). Synchronized batch
        normalization needs no placeholder.
        """
        if not self.is_collective:
            self.is_collective, self._placeholder = True, placeholder

    def forward(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """Outputs, and the weighted sum of the rows' losses."""
        with self.autocast():
            if batch.rows == 0:  # a mean over nothing would be NaN
                output = self._network(*(self._placeholder or batch).arguments)
                return output, _zero_loss(output)
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

    def forward_backward(self, batch: Batch, tally: Tally) -> tuple[float, float]:
        """Add a batch's gradients to those that are there; gives its summed loss and weight."""
        with self._small_batch_mode(batch):
            output, loss = self.forward(batch)
        loss.backward()
        return self._count(batch, output, loss, tally)

    def evaluate(self, batch: Batch, tally: Tally) -> None:
        """Only count loss and metrics."""
        with torch.no_grad():
            output, loss = self.forward(batch)
        self._count(batch, output, loss, tally)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        return autocast(self._precision, self._device)

    def _count(
        self, batch: Batch, output: Any, loss: torch.Tensor, tally: Tally
    ) -> tuple[float, float]:
        if batch.rows == 0:
            return 0.0, 0.0
        total, weight = float(loss.detach()), batch.weight
        tally.add(total, weight, output, batch.targets, batch.weights)
        return total, weight

    def _small_batch_mode(self, batch: Batch) -> AbstractContextManager[None]:
        """How batch normalization treats one row, or a placeholder."""
        if batch.rows == 0 and self._placeholder is not None:
            return self._norms.eval_mode()
        return self._norms.single_row() if batch.rows <= 1 else nullcontext()


def _zero_loss(output: Any) -> torch.Tensor:
    """A loss of zero whose backward pass still goes through the whole network."""
    outputs = output if isinstance(output, tuple | list) else [output]
    return torch.stack([one.sum() for one in outputs]).sum() * 0
