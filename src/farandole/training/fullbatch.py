"""The training loop of full-batch solvers: every step sees all rows, on all workers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from farandole.errors import InputError
from farandole.parallel.base import Totals
from farandole.training import events
from farandole.training.loop import Progress
from farandole.training.metrics import Tally
from farandole.training.recipe import Recipe
from farandole.training.solvers import Iterate, Solver
from farandole.training.stage import (
    DIVERGED,
    INTERRUPTED,
    TIME_UP,
    Clock,
    Keeper,
    Stage,
    diverged,
)

_CHUNK = 1024
"""Rows that go through the network at once: large enough to keep a core busy, small enough that
their activations stay in its caches."""


class _Stop(Exception):
    """All workers agreed to end before the solver did."""


class FullBatchLoop:
    """Lets a solver walk over the weights of one network; an epoch is one of its iterations."""

    def __init__(self, stage: Stage, solver: Solver) -> None:
        _refuse_unused(stage.recipe)
        _refuse_chance(stage.network)
        self._stage = stage
        self._solver = solver
        self._parameters = [p for p in stage.network.parameters() if p.requires_grad]
        self._chunks = list(_chunks(stage.training.numbers))
        self._keeper = Keeper(stage)
        self._clock = Clock(stage.recipe.max_seconds)
        self._tally = stage.tally()
        self._evaluations = 0

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
                raise diverged(f"The loss became {last.value}", last.step)
            return progress
        self._move_to(last.point)
        self._keeper.restore_best()
        return progress

    def _end_iteration(self, iterate: Iterate, progress: Progress) -> None:
        row = {"epoch": float(iterate.number), **self._stage.result("train", self._tally)}
        self._move_to(iterate.point)
        if self._stage.validates:
            row |= self._stage.evaluate()
        seconds = self._clock.seconds - sum(known["seconds"] for known in progress.history)
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
        stage.network.train()
        stage.sync.begin()
        self._tally = Tally(stage.metrics, stage.head)
        loss = weight = 0.0
        for rows in self._chunks:
            more_loss, more_weight = stage.stepper.learn(stage.batcher(rows), self._tally)
            loss, weight = loss + more_loss, weight + more_weight
        mine = Totals(loss, weight, stage.world.link.stop_requested(), self._clock.is_up())
        totals = stage.sync.finish(mine)
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


def _chunks(
    numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> Iterator[torch.Tensor | slice]:
    """Row numbers in the order of storage; as slices, which need no copy, where none is missing."""
    ordered = np.sort(numbers)
    for start in range(0, len(ordered), _CHUNK):
        part = ordered[start : start + _CHUNK]
        first, last = int(part[0]), int(part[-1])
        whole = last - first + 1 == len(part)
        yield slice(first, last + 1) if whole else torch.from_numpy(part)


_UNUSED = (
    "batch_size",
    "accumulation",
    "schedule",
    "schedule_per",
    "warmup",
    "clip_norm",
    "clip_value",
    "max_steps",
)


def _refuse_unused(recipe: Recipe) -> None:
    """Raise for options of mini-batches that were set."""
    for name in _UNUSED:
        if getattr(recipe, name) != getattr(Recipe(), name):
            raise InputError(
                f"{name} has no meaning for a solver that uses all rows for every step. "
                f"Received: {name}={getattr(recipe, name)!r}. Leave it out, or use another "
                'optimizer, such as "adam".'
            )


def _refuse_chance(network: torch.nn.Module) -> None:
    """Raise for layers that make the objective more than a function of the weights."""
    for name, module in network.named_modules():
        drops = isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0
        if drops or isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"The layer {name!r} ({type(module).__name__}) gives other results in every batch, "
                "and a full-batch solver needs a function of the weights alone. Leave it out, or "
                'use another optimizer, such as "adam".'
            )
