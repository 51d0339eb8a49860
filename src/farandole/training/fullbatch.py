"""The training loop of full-batch solvers: every step sees all rows, on all workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from farandole.errors import InputError, TrainingDiverged
from farandole.parallel import Totals
from farandole.ragged import Ragged
from farandole.training import events
from farandole.training.freezing import Freeze, at_rest
from farandole.training.loop import Progress
from farandole.training.solvers import Iterate, Solver
from farandole.training.stage import (
    DIVERGED,
    INTERRUPTED,
    TIME_UP,
    Clock,
    Keeper,
    Stage,
)
from farandole.training.step import Batch

_CHUNK = 1024
"""Rows that go through the network at once: large enough to keep a core busy, small enough that
their activations stay in its caches."""


class _Stop(Exception):
    """All workers agreed to end before the solver did."""


class FullBatchLoop:
    """Lets a solver walk over the weights of one network; an epoch is one of its iterations."""

    def __init__(self, stage: Stage, solver: Solver) -> None:
        self._stage = stage
        self._solver = solver
        self._parameters = [p for p in stage.network.parameters() if p.requires_grad]
        at_once = stage.fitting(stage.training, _CHUNK, learning=True)
        self._chunks = [_as_slice(rows) for rows in stage.loader.chunks(stage.training, at_once)]
        self._keeper = Keeper(stage)
        self._clock = Clock(stage.recipe.max_seconds, stage.spent)
        self._tally = stage.tally()
        self._evaluations = 0
        self._since = 0.0

    def run(self) -> Progress:
        """The solver's iterations, or as many as there is reason for."""
        progress = Progress()
        start = torch.cat([p.detach().double().reshape(-1).cpu() for p in self._parameters])
        last = Iterate(0, start, math.nan)
        try:
            for last in self._solver.iterates(self._evaluate, start, self._stage.recipe.epochs):
                progress.steps.append((last.number, last.step, last.value))
                if self._stage.recipe.stop_on_nan and not math.isfinite(last.value):
                    progress.reason = DIVERGED
                    break
                if last.number > len(progress.history):
                    self._end_iteration(last, progress)
                progress.reason = last.ended or progress.reason
                if self._keeper.stopping.exhausted:
                    progress.reason = f"no better {self._keeper.stopping.monitor}"
                    break
        except _Stop as stop:
            progress.reason = str(stop)
        return self._finished(last, progress)

    def _finished(self, last: Iterate, progress: Progress) -> Progress:
        if progress.reason == DIVERGED:
            if not self._keeper.fall_back():
                raise TrainingDiverged(
                    f"The loss is {last.value} with the weights that training began with, or after "
                    "the first step. Scale the features, start from smaller weights, or, with "
                    '"gd", take a smaller step.'
                )
            return progress
        self._move_to(last.point)
        self._keeper.restore_best()
        return progress

    def _end_iteration(self, iterate: Iterate, progress: Progress) -> None:
        row = {"epoch": float(iterate.number), **self._stage.result("train", self._tally)}
        self._move_to(iterate.point)
        if self._stage.validates:
            row |= self._stage.evaluate()
        now = self._clock.seconds
        seconds, self._since = now - self._since, now
        rows = self._stage.loader.total * self._evaluations
        row |= {
            "learning_rate": iterate.step,
            "evaluations": float(self._evaluations),
            "seconds": seconds,
            "rows_per_second": rows / seconds if seconds else 0.0,
        }
        self._evaluations = 0
        progress.update = iterate.number
        progress.history.append(row)
        self._keeper.see(row)
        self._stage.tell(events.EpochEnded(epoch=iterate.number, row=row))

    def _evaluate(self, point: torch.Tensor) -> tuple[float, torch.Tensor]:
        """The objective and its gradient, over all rows of all workers."""
        stage = self._stage
        self._move_to(point)
        stage.learning()
        stage.sync.zero_grad(len(self._chunks))
        self._tally = stage.tally()
        loss = weight = 0.0
        for rows in self._chunks:
            more_loss, more_weight = stage.stepper.learn(stage.batcher(rows), self._tally)
            loss, weight = loss + more_loss, weight + more_weight
        mine = Totals(loss, weight, stage.world.link.stop_requested(), self._clock.is_up())
        totals = stage.sync.reduce_gradients(mine)
        self._evaluations += 1
        if totals.interrupted or totals.expired:
            raise _Stop(INTERRUPTED if totals.interrupted else TIME_UP)
        parts = [p.grad.reshape(-1) for p in self._parameters if p.grad is not None]
        return totals.mean_loss, torch.cat([part.double().cpu() for part in parts])

    def _move_to(self, point: torch.Tensor) -> None:
        sizes = [p.numel() for p in self._parameters]
        with torch.no_grad():
            for parameter, part in zip(self._parameters, point.split(sizes), strict=True):
                parameter.copy_(part.view_as(parameter))


def _as_slice(rows: torch.Tensor) -> torch.Tensor | slice:
    """Sorted row numbers as a slice, which needs no copy, where none is missing among them."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def check_network(network: nn.Module, freeze: Freeze = None) -> None:
    """Raise for layers that make the objective more than a function of the weights."""
    resting = set(at_rest(network, freeze))
    for name, module in network.named_modules():
        if module in resting:
            continue
        if _takes_chances(module) or isinstance(module, _BatchNorm):
            raise InputError(
                f"The layer {name!r} ({type(module).__name__}) gives other results in every batch, "
                "and a full-batch solver needs a function of the weights alone. Leave it out (or "
                'its dropout), or use another optimizer, such as "adam".'
            )


def _takes_chances(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout) > 0
    return isinstance(module, nn.RReLU)


@contextmanager
def untouched(batch: Batch) -> Iterator[None]:
    """Raise if the body writes to the batch: with all rows, it would write to the rows themselves.

    Mini-batches are copies, but here a batch is a part of the shard.
    """
    before = _versions(batch)
    yield
    if _versions(batch) != before:
        raise InputError(
            "The network or the loss changes its input in place (inplace=True, x += …), which a "
            "full-batch solver can't allow: let its first layer make a new tensor."
        )


def _versions(batch: Batch) -> list[int]:
    """What torch counts up whenever a tensor is written to."""
    parts = [one.values if isinstance(one, Ragged) else one for one in batch.arguments]
    return [part._version for part in [*parts, *batch.targets]]
