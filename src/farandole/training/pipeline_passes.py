"""Passes through a pipeline: a network that is split by layers into stages, one a worker.

All workers of a replica make each pass together, and each has its own rows. The first stage gets
the features of all of them, the last one the labels and weights, and only the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from farandole.errors import InputError
from farandole.parallel import StageRunner
from farandole.training.batch_norm import BatchNorms
from farandole.training.batches import Batch
from farandole.training.losses import Loss
from farandole.training.precision import autocast
from farandole.training.tally import Tally

_NEEDS_ROWS = (
    "A pipeline fills up batches with rows that don't count, so it needs a loss for each row: let "
    'the loss return a tensor with one value a row (reduction="none"), not their mean.'
)


@dataclass(frozen=True)
class _Round:
    """As many rows as go through the pipeline at once."""

    count: int
    """How many of them are new; the others are repeated ones that only fill up, without weight."""
    features: torch.Tensor | None
    targets: list[torch.Tensor]
    weights: torch.Tensor | None

    @property
    def own_weights(self) -> torch.Tensor | None:
        """Those of new rows."""
        return None if self.weights is None else self.weights[: self.count]


class PipelinePasses:
    """Forward and backward passes of one stage, together with the other stages."""

    is_collective = True

    def __init__(
        self, runner: StageRunner, loss: Loss, precision: str, device: str, batch_size: int
    ) -> None:
        self._runner = runner
        self._loss = loss
        self._precision, self._device = precision, device
        self._round: _Round | None = None
        self._norms = BatchNorms(runner.module)
        share = -(-batch_size // runner.replicas)
        # Replicas don't get exactly the same share of each batch.
        room = share if runner.replicas == 1 else share + share // 8 + 1
        runner.setup(room, self._micro_loss, self.autocast)

    def forward_backward(self, batch: Batch, tally: Tally) -> tuple[float, float]:
        """Add the gradients of all workers' rows; loss and weight, on the last stage."""
        loss = weight = 0.0
        for some in self._rounds(batch):
            self._round = some
            with self._small_batch_mode(some.count):
                output, more = self._runner.step(some.features)
            self._round = None
            if self._runner.is_last:
                loss, weight = loss + more, weight + _count(some, output, more, tally)
        return loss, weight

    def evaluate(self, batch: Batch, tally: Tally) -> None:
        """Only count loss and metrics."""
        for some in self._rounds(batch):
            output = self._runner.eval(some.features)
            if self._runner.is_last:
                with torch.no_grad():
                    loss = self._summed(output, some, slice(None))
                _count(some, output, float(loss), tally)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""
        return autocast(self._precision, self._device)

    def _small_batch_mode(self, count: int) -> AbstractContextManager[None]:
        """A micro-batch that is one row, repeated to fill it up, has the statistics of one row."""
        copies = self._runner.capacity // self._runner.micro_batches
        return self._norms.single_row(copies) if 1 in (count, copies) else nullcontext()

    def _rounds(self, batch: Batch) -> Iterator[_Round]:
        """The rows of all workers, as many at a time as go through; the last round is filled up."""
        counts = self._runner.row_counts(batch.rows)
        total, most = sum(counts), self._runner.capacity
        if total == 0:
            return
        assert all(isinstance(argument, torch.Tensor) for argument in batch.arguments)
        features: Any = batch.arguments
        weights = [] if batch.weights is None else [batch.weights]
        here = self._runner.gather_rows(features, [*batch.targets, *weights], counts)
        for start in range(0, total, most):
            count = min(most, total - start)
            rows = start + torch.arange(most) % count
            taken = [tensor[rows.to(tensor.device)] for tensor in here]
            if self._runner.is_first:
                yield _Round(count, taken[0], [], None)
            elif self._runner.is_last:
                targets = taken[: len(batch.targets)]
                yield _Round(count, None, targets, taken[-1] if weights else None)
            else:
                yield _Round(count, None, [], None)

    def _micro_loss(self, output: Any, numbers: torch.Tensor) -> torch.Tensor:
        """The summed loss of one micro-batch, which has these rows of the round."""
        assert self._round is not None
        return self._summed(output, self._round, numbers)

    def _summed(self, output: Any, some: _Round, rows: torch.Tensor | slice) -> torch.Tensor:
        with self.autocast():
            losses = self._loss.rows(output, [target[rows] for target in some.targets])
        if losses.dim() == 0:
            raise InputError(_NEEDS_ROWS)
        new = torch.arange(len(some.targets[0]), device=losses.device)[rows] < some.count
        if some.weights is not None:
            new = new * some.weights[rows]
        return (losses * new.to(losses.dtype)).sum()


def check_loss(runner: StageRunner, loss: Loss, example: Batch) -> None:
    """Raise for a loss that gives but one number for many rows: some of them must not count."""
    if loss.callable is None:
        return
    outputs = [
        torch.zeros((example.rows, *form.shape), dtype=form.dtype) for form in runner.outputs
    ]
    targets = [target.cpu() for target in example.targets]
    try:
        found = loss.rows(outputs[0] if len(outputs) == 1 else tuple(outputs), targets)
    except Exception:  # it may refuse zeros for reasons of its own
        return
    if found.dim() == 0:
        raise InputError(_NEEDS_ROWS)


def _count(some: _Round, output: Any, loss: float, tally: Tally) -> float:
    """Count the new rows; their weight."""
    targets = [target[: some.count] for target in some.targets]
    weights = some.own_weights
    weight = float(some.count) if weights is None else float(weights.sum())
    tally.add(loss, weight, _first(output, some.count), targets, weights)
    return weight


def _first(output: Any, rows: int) -> Any:
    """The first rows of an output, or of each of several."""
    if isinstance(output, tuple | list):
        return tuple(one[:rows] for one in output)
    return output[:rows]
