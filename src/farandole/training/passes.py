"""Forward and backward passes: a batch → outputs → loss → gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from farandole.errors import InputError
from farandole.keras_models import KerasNetwork
from farandole.networks import named_outputs
from farandole.parallel import BatchGathering, map_outputs
from farandole.ragged import Ragged
from farandole.training.batch_norm import BatchNorms
from farandole.training.batches import Batch
from farandole.training.losses import Loss
from farandole.training.precision import autocast
from farandole.training.recipe import Recipe
from farandole.training.tally import Tally
from farandole.world import World


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
        normalization needs no placeholder, but for that of Keras.
        """
        if not self.is_collective or self._norms.need_placeholder:
            self.is_collective, self._placeholder = True, placeholder

    def forward(
        self, batch: Batch, by_head: list[torch.Tensor] | None = None
    ) -> tuple[Any, torch.Tensor]:
        """Outputs, and the weighted sum of the rows' losses; those of heads go into `by_head`."""
        with self.autocast():
            output = self._output(batch)
            if batch.rows == 0:  # a mean over nothing would be NaN
                return output, _zero_loss(output)
            losses = self._loss.rows(output, batch.targets, by_head)
        summed = _summed(losses, batch.weights, batch.rows)
        added = self._added_loss()
        return output, summed if added is None else summed + added * self._weight(batch)

    def _added_loss(self) -> torch.Tensor | None:
        """What the network itself adds to the mean loss, such as Keras's regularizers."""
        return self._network.added_loss() if isinstance(self._network, KerasNetwork) else None

    def _weight(self, batch: Batch) -> float:
        """What the sum of a batch's losses is divided by, together with those of others."""
        return float(batch.rows) if self._loss.per_rows else batch.weight

    def _output(self, batch: Batch) -> Any:
        """The network's; of a placeholder's rows where there are none of this worker's own."""
        given = self._placeholder if batch.rows == 0 and self._placeholder else batch
        with self._norms.counting(batch.rows):
            return self._network(*given.arguments)

    def forward_backward(self, batch: Batch, tally: Tally) -> tuple[float, float]:
        """Add a batch's gradients to those that are there; gives its summed loss and weight."""
        by_head: list[torch.Tensor] = []
        with self._small_batch_mode(batch):
            output, loss = self.forward(batch, by_head)
        loss.backward()
        return self._count(batch, output, loss, tally, by_head)

    def evaluate(self, batch: Batch, tally: Tally) -> None:
        """Only count loss and metrics."""
        by_head: list[torch.Tensor] = []
        with torch.no_grad():
            output, loss = self.forward(batch, by_head)
        self._count(batch, output, loss, tally, by_head)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        return autocast(self._precision, self._device)

    def _count(
        self,
        batch: Batch,
        output: Any,
        loss: torch.Tensor,
        tally: Tally,
        by_head: Sequence[torch.Tensor],
    ) -> tuple[float, float]:
        if batch.rows == 0:
            return 0.0, 0.0
        total, weight = float(loss.detach()), self._weight(batch)
        tally.add(total, weight, output, batch.targets, batch.weights, by_head)
        return total, weight

    def _small_batch_mode(self, batch: Batch) -> AbstractContextManager[None]:
        """How batch normalization treats one row, or a placeholder."""
        if batch.rows == 0 and self._placeholder is not None and not self._norms.are_synchronized:
            return self._norms.eval_mode()
        return self._norms.single_row() if batch.rows <= 1 else nullcontext()


def make_passes(network: nn.Module, loss: Loss, recipe: Recipe, world: World) -> NetworkPasses:
    """Passes through a whole network, with a loss of rows or of the batch of all workers."""
    if recipe.loss_scope == "batch" and world.size > 1:
        return BatchLossPasses(network, loss, recipe.precision, world)
    return NetworkPasses(network, loss, recipe.precision, world.device)


class BatchLossPasses(NetworkPasses):
    """Passes with a loss that compares the rows of a batch, those of all workers.

    Each worker computes the whole loss, and its gradient by the worker's own outputs.
    """

    def __init__(self, network: nn.Module, loss: Loss, precision: str, world: World) -> None:
        super().__init__(network, loss, precision, world.device)
        self._world = world

    def forward(
        self, batch: Batch, by_head: list[torch.Tensor] | None = None
    ) -> tuple[Any, torch.Tensor]:
        """Outputs, and this worker's share of the loss, with the gradient of the whole."""
        if self._placeholder is None and not self._norms.are_synchronized:
            return super().forward(batch, by_head)  # before workers are in step, to try the loss
        with self.autocast():
            output = self._output(batch)
            if batch.rows == 0:
                output = map_outputs(lambda one: one[:0], output)
            all_rows = BatchGathering(batch.rows, self._world)
            targets = [all_rows.tensor(target) for target in batch.targets]
            losses = self._loss.rows(map_outputs(all_rows.tensor, output), targets, by_head)
        if by_head is not None:
            by_head[:] = [one[all_rows.own] if one.dim() else one for one in by_head]
        weights = None if batch.weights is None else all_rows.tensor(batch.weights)
        whole = _summed(losses, weights, all_rows.rows)
        if losses.dim() == 0:
            share = losses * batch.rows
        else:
            own = None if weights is None else weights[all_rows.own]
            share = _summed(losses[all_rows.own], own, batch.rows)
        found = whole - whole.detach() + share.detach()
        added = self._added_loss()
        return output, found if added is None else found + added * self._weight(batch)


def _summed(losses: torch.Tensor, weights: torch.Tensor | None, rows: int) -> torch.Tensor:
    """The weighted sum of the rows' losses, which may come as their mean."""
    if losses.dim() > 0:
        return losses.sum() if weights is None else (losses * weights.to(losses.dtype)).sum()
    if weights is not None:
        raise InputError(
            "Weights need a loss for each row: let the loss return a tensor with one value a "
            'row (reduction="none"), not their mean.'
        )
    return losses * rows


def _zero_loss(output: Any) -> torch.Tensor:
    """A loss of zero whose backward pass still goes through the whole network."""
    tensors = [
        one.values if isinstance(one, Ragged) else one for one in named_outputs(output).values()
    ]
    return torch.stack([one.sum() for one in tensors]).sum() * 0
