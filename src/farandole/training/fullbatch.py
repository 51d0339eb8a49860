"""The training loop of full-batch solvers: every step sees all rows, on all workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from farandole.errors import InputError, TrainingDiverged
from farandole.keras_models import varies_by_batch
from farandole.parallel import Totals, long_barrier
from farandole.training import events
from farandole.training.checkpointing import (
    Checkpointer,
    check_same_data,
    packed_progress,
    unpacked_progress,
)
from farandole.training.context import Clock, TrainingContext
from farandole.training.early_stopping import BestWeights
from farandole.training.freezing import Freeze, frozen_layers
from farandole.training.job import (
    INTERRUPTED,
    LOSS_DIVERGED,
    PREEMPTED,
    TIME_UP,
    LoopState,
)
from farandole.training.solvers import ALL_DONE, Iterate, Solver

_CHUNK = 1024
"""Rows that go through the network at once: large enough to keep a core busy, small enough that
their activations stay in its caches."""


_LONG_EVALUATION = 10**8
"""Rows times parameters from which on an evaluation takes a good part of a second, and workers with
more rows, or a slower core, may come later than a collective waits. (A barrier takes 1 ms.)"""


class _Stop(Exception):
    """All workers agreed to end before the solver did."""


class FullBatchLoop:
    """Trains one network with a full-batch solver; an epoch is one of its iterations."""

    def __init__(self, context: TrainingContext, solver: Solver) -> None:
        self.context = context
        self._solver = solver
        self._parameters = [p for p in context.network.parameters() if p.requires_grad]
        at_once = context.rows_at_once(context.training, _CHUNK, learning=True)
        chunks = context.loader.chunks(context.training, at_once)
        self._chunks = [_as_slice(rows) for rows in chunks]
        self._best = BestWeights(context)
        self._clock = Clock(context.recipe.max_seconds, context.caching_seconds)
        self._tally = context.new_tally()
        self._evaluations = 0
        self._since = 0.0
        learning = sum(p.numel() for p in self._parameters)
        self._may_differ = context.loader.total * learning > _LONG_EVALUATION
        self._checkpoints = Checkpointer(context)
        self._is_due = False
        self._state: Mapping[str, Any] = {}
        self._progress = LoopState()
        self._start: torch.Tensor | Iterate = torch.cat(
            [p.detach().double().reshape(-1).cpu() for p in self._parameters]
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        check_same_data(state, self.context)
        self._state = state
        self._start = Iterate(**state["iterate"])
        self._progress = unpacked_progress(state["progress"])
        self._best.stopping.load_state(state["stopping"])
        self._best.scatter(state["kept"])
        self._clock.spent = state["spent"]
        ended = self._start.ended not in (None, ALL_DONE)
        self._checkpoints.announce_resumed(state, len(self._progress.history) + 1, ended=ended)

    def close(self) -> None:
        """Wait until the last checkpoint is on disk."""
        self._checkpoints.close()

    def run(self) -> LoopState:
        """The solver's iterations, or as many as there is reason for."""
        progress, start = self._progress, self._start
        last = start if isinstance(start, Iterate) else Iterate(0, start, math.nan)
        if self._had_ended(last):
            return self._finished(last, progress)
        try:
            for last in self._solver.iterates(self._evaluate, start, self.context.recipe.epochs):
                progress.steps.append((last.number, last.step, last.value))
                if self.context.recipe.stop_on_nan and not math.isfinite(last.value):
                    progress.reason = LOSS_DIVERGED
                    break
                if last.number > len(progress.history):
                    self._end_iteration(last, progress)
                stopping = self._best.stopping
                is_last = bool(last.ended) or stopping.exhausted
                if is_last:
                    progress.reason = last.ended or f"no better {stopping.monitor}"
                self._save_if_due(last, progress, is_last=is_last)
                if is_last:
                    break
        except _Stop as stop:
            # As it was before the request: from there it goes on.
            if last.memory and str(stop) != TIME_UP:
                self._save_if_due(last, progress, is_last=True)
            progress.reason = str(stop)
        return self._finished(last, progress)

    def _had_ended(self, last: Iterate) -> bool:
        """Whether the checkpoint is of a training that was over, however many iterations it has."""
        over = self._best.stopping.exhausted or last.ended not in (None, ALL_DONE)
        if over:
            self._checkpoints.warn_if_limits_changed(self._state, self._progress.reason)
        return over

    def _finished(self, last: Iterate, progress: LoopState) -> LoopState:
        if progress.reason == LOSS_DIVERGED:
            if not self._best.restore():
                raise TrainingDiverged(
                    f"The loss is {last.value} with the weights that training began with, or after "
                    "the first step. Scale the features, start from smaller weights, or, with "
                    '"gd", take a smaller step.'
                )
            return progress
        self._set_weights(last.point)
        self._best.restore_best()
        return progress

    def _save_if_due(self, iterate: Iterate, progress: LoopState, *, is_last: bool) -> None:
        keeps_best = self._checkpoints.keeps_best and bool(progress.history)
        if not self._checkpoints.enabled or not (self._is_due or is_last or keeps_best):
            return
        self._is_due = False
        self._set_weights(iterate.point)
        common = {
            "iterate": {f.name: getattr(iterate, f.name) for f in fields(Iterate)},
            "progress": packed_progress(progress),
            "weights": self.context.sync.gather(self.context.whole_network),
            "kept": self._best.gather(),
            "stopping": self._best.stopping.state(),
            "spent": self._clock.spent,
        }
        row = progress.history[-1] if keeps_best else {}
        score = row.get(self._best.stopping.monitor)
        self._checkpoints.save(progress.update, common, {}, score=score)

    def _end_iteration(self, iterate: Iterate, progress: LoopState) -> None:
        row = {"epoch": float(iterate.number), **self.context.history_columns("train", self._tally)}
        self._set_weights(iterate.point)
        if self.context.validates:
            row |= self.context.evaluate()
        now = self._clock.seconds
        seconds, self._since = now - self._since, now
        rows = self.context.loader.total * self._evaluations
        row |= {
            "learning_rate": iterate.step,
            "evaluations": float(self._evaluations),
            "seconds": seconds,
            "rows_per_second": rows / seconds if seconds else 0.0,
        }
        self._evaluations = 0
        progress.update = iterate.number
        progress.history.append(row)
        self._best.observe(row)
        self.context.emit(events.EpochEnded(epoch=iterate.number, row=row))

    def _evaluate(self, point: torch.Tensor) -> tuple[float, torch.Tensor]:
        """The objective and its gradient, over all rows of all workers."""
        context = self.context
        self._set_weights(point)
        context.set_training_mode()
        context.sync.zero_grad(len(self._chunks))
        self._tally = context.new_tally()
        loss = weight = 0.0
        for rows in self._chunks:
            more = context.passes.forward_backward(context.batcher(rows), self._tally)
            loss, weight = loss + more[0], weight + more[1]
        if self._may_differ:
            long_barrier(context.world.size)
        mine = Totals(
            loss,
            weight,
            interrupted=context.world.link.stop_requested(),
            expired=self._clock.has_expired(),
            checkpoint=self._checkpoints.is_due(self._progress.update + 1),
            preempted=context.world.link.preempted(),
        )
        totals = context.sync.reduce_gradients(mine)
        self._evaluations += 1
        self._is_due = self._is_due or totals.checkpoint
        if totals.preempted:
            raise _Stop(PREEMPTED)
        if totals.interrupted or totals.expired:
            raise _Stop(INTERRUPTED if totals.interrupted else TIME_UP)
        parts = [p.grad.reshape(-1) for p in self._parameters if p.grad is not None]
        return totals.mean_loss, torch.cat([part.double().cpu() for part in parts])

    def _set_weights(self, point: torch.Tensor) -> None:
        sizes = [p.numel() for p in self._parameters]
        with torch.no_grad():
            for parameter, part in zip(self._parameters, point.split(sizes), strict=True):
                parameter.copy_(part.view_as(parameter))


def _as_slice(rows: torch.Tensor) -> torch.Tensor | slice:
    """Sorted row numbers as a slice, which needs no copy, where none is missing among them."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def check_full_batch(network: nn.Module, freeze: Freeze = None) -> None:
    """Raise for layers that make the objective more than a function of the weights."""
    frozen = set(frozen_layers(network, freeze))
    for name, module in network.named_modules():
        if module in frozen:
            continue
        if _is_random(module) or isinstance(module, _BatchNorm) or varies_by_batch(module):
            raise InputError(
                f"The layer {name!r} ({type(module).__name__}) gives other results in every batch, "
                "and a full-batch solver needs a function of the weights alone. Leave it out (or "
                'its dropout), or use another optimizer, such as "adam".'
            )


def _is_random(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout) > 0
    return isinstance(module, nn.RReLU)
