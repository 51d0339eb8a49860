"""The training loop: the only one there is."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from farandole.data.loader import Loader, Rows
from farandole.errors import TrainingDiverged
from farandole.parallel.base import Synchronizer, Totals
from farandole.training import events, optimizers
from farandole.training.metrics import Tally
from farandole.training.recipe import Recipe
from farandole.training.schedules import Pace
from farandole.training.step import Batcher, Stepper
from farandole.training.stopping import EarlyStopping, check_monitor, higher_is_better
from farandole.world import World

_REPORT_SECONDS = 0.25
State = dict[str, torch.Tensor]


@dataclass
class Progress:
    """How far training has come; what outlives it."""

    history: list[dict[str, float]] = field(default_factory=list)
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    """(epoch, learning rate, loss) of every update."""
    update: int = 0
    reason: str = "all epochs done"


class Loop:
    """Trains one network on one worker, in step with the others."""

    def __init__(
        self,
        network: nn.Module,
        recipe: Recipe,
        metrics: dict[str, Any],
        *,
        world: World,
        sync: Synchronizer,
        stepper: Stepper,
        batcher: Batcher,
        loader: Loader,
        validation: Rows,
        validation_rows: int,
        head: str,
    ) -> None:
        self._network = network
        self._recipe = recipe
        self._metrics = metrics
        self._world = world
        self._sync = sync
        self._stepper = stepper
        self._batcher = batcher
        self._loader = loader
        self._validation = validation
        self._validates = validation_rows > 0
        self._head = head
        self._optimizer = optimizers.make(
            recipe.optimizer, network, recipe.learning_rate, recipe.optimizer_options
        )
        self._per_epoch = -(-loader.steps // recipe.accumulation)
        self._last_update = min(recipe.max_steps or 1 << 62, recipe.epochs * self._per_epoch)
        self._pace = Pace(
            self._optimizer,
            recipe.schedule,
            per=recipe.schedule_per,
            warmup=recipe.warmup,
            updates=self._last_update,
            updates_per_epoch=self._per_epoch,
        )
        self._stopping = self._make_stopping()
        # A mask of -inf is no accident: what was finite at the start has to stay so.
        self._finite = {name for name, tensor in _floating(network) if _is_finite(tensor)}
        self._kept: State | None = None
        self._start = time.perf_counter()
        self._reported = self._start

    def _make_stopping(self) -> EarlyStopping:
        recipe = self._recipe
        check_monitor(recipe.monitor, self._metrics, self._validates)
        monitor = recipe.monitor or ("validation_loss" if self._validates else "train_loss")
        if recipe.patience is None:  # nothing depends on which epoch is the best
            return EarlyStopping(monitor, None)
        up = higher_is_better(monitor, self._metrics, recipe.monitor_mode)
        return EarlyStopping(monitor, recipe.patience, recipe.min_delta, higher_is_better=up)

    def run(self) -> Progress:
        """All epochs, or as many as there is reason for."""
        progress = Progress()
        for epoch in range(self._recipe.epochs):
            ended = self._epoch(epoch, progress)
            if ended in UNFINISHED:
                progress.reason = str(ended)
                self._fall_back(progress)
                return progress
            row = progress.history[-1]
            best = self._stopping.observe(row)
            self._pace.after_epoch(row[self._stopping.monitor])
            if best or self._recipe.patience is None or not self._recipe.restore_best:
                self._kept = _copy(self._network, self._kept)
            if ended is not None or self._stopping.exhausted:
                progress.reason = ended or f"no better {self._stopping.monitor}"
                break
        if self._recipe.patience is not None and self._recipe.restore_best and self._kept:
            self._network.load_state_dict(self._kept)
        return progress

    def _epoch(self, epoch: int, progress: Progress) -> str | None:
        """One epoch; why it ended too soon, if it did."""
        start = time.perf_counter()
        tally = Tally(self._metrics, self._head)
        self._network.train()
        ended = self._train(epoch, tally, progress)
        if ended in UNFINISHED:
            return ended
        seconds = time.perf_counter() - start
        row = {"epoch": float(epoch + 1), **self._result("train", tally)}
        self._sync.average_buffers(self._loader.own_rows)
        if self._recipe.stop_on_nan and self._is_spoiled():
            return SPOILED
        if self._validates:
            row |= self._evaluate()
        row |= {
            "learning_rate": self._pace.learning_rate,
            "seconds": seconds,
            "rows_per_second": self._rows_used(epoch, progress) / seconds if seconds else 0.0,
        }
        progress.history.append(row)
        self._tell(events.EpochEnded(epoch=epoch + 1, row=row))
        return ended

    def _train(self, epoch: int, tally: Tally, progress: Progress) -> str | None:
        steps = self._loader.epoch(epoch)
        while group := list(islice(steps, self._recipe.accumulation)):
            self._pace.before_update(progress.update)
            totals = self._update(iter(group), tally)
            progress.steps.append((epoch + 1, self._pace.learning_rate, totals.mean_loss))
            if self._recipe.stop_on_nan and not math.isfinite(totals.loss):
                return DIVERGED
            self._pace.after_update()
            progress.update += 1
            self._report(epoch, progress, totals)
            if totals.interrupted:
                return INTERRUPTED
            if totals.expired:
                return _TIME_UP
            if progress.update >= self._last_update and self._recipe.max_steps:
                return _STEPS_DONE
        return None

    def _update(self, group: Iterator[torch.Tensor], tally: Tally) -> Totals:
        self._sync.begin()
        loss = weight = 0.0
        for rows in group:
            if len(rows):
                more_loss, more_weight = self._stepper.learn(self._batcher(rows), tally)
                loss, weight = loss + more_loss, weight + more_weight
        mine = Totals(loss, weight, self._world.link.stop_requested(), self._out_of_time())
        totals = self._sync.finish(mine)
        if totals.weight > 0 and math.isfinite(totals.loss):
            self._clip()
            self._optimizer.step()
        return totals

    def _clip(self) -> None:
        if self._recipe.clip_value is not None:
            nn.utils.clip_grad_value_(self._network.parameters(), self._recipe.clip_value)
        if self._recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._network.parameters(), self._recipe.clip_norm)

    def _evaluate(self) -> dict[str, float]:
        tally = Tally(self._metrics, self._head)
        self._network.eval()
        for rows in self._loader.chunks(self._validation, max(self._recipe.batch_size, 1024)):
            self._stepper.evaluate(self._batcher(rows), tally)
        return self._result("validation", tally)

    def _result(self, prefix: str, tally: Tally) -> dict[str, float]:
        return tally.result(prefix, self._sync.reduce_sums, self._world.size)

    def _is_spoiled(self) -> bool:
        """Whether weights are lost: a last update can do that without a loss that tells.

        All workers have the same weights, so they come to the same verdict.
        """
        tensors = (tensor for name, tensor in _floating(self._network) if name in self._finite)
        return not all(map(_is_finite, tensors))

    def _fall_back(self, progress: Progress) -> None:
        """Go back to the last finished epoch."""
        if self._kept is not None:
            self._network.load_state_dict(self._kept)
        elif progress.reason != INTERRUPTED:
            _, rate, loss = progress.steps[-1]
            what = f"The loss became {loss} in update {progress.update + 1}"
            if progress.reason == SPOILED:
                what = f"Weights became NaN or infinite in one of {progress.update} updates"
            raise TrainingDiverged(
                f"{what}, before the first epoch was over. Lower learning_rate (it was {rate:g}), "
                "scale the features, or clip gradients with clip_norm."
            )

    def _out_of_time(self) -> bool:
        limit = self._recipe.max_seconds
        return limit is not None and time.perf_counter() - self._start > limit

    def _report(self, epoch: int, progress: Progress, totals: Totals) -> None:
        now = time.perf_counter()
        if not self._world.is_leader or now - self._reported < _REPORT_SECONDS:
            return
        self._reported = now
        rows = epoch * self._loader.total + self._rows_used(epoch, progress)
        self._tell(
            events.StepEnded(
                epoch=epoch + 1,
                step=progress.update,
                loss=totals.mean_loss,
                rows_per_second=rows / (now - self._start),
            )
        )

    def _rows_used(self, epoch: int, progress: Progress) -> int:
        """How many rows this epoch has used so far, over all workers."""
        updates = progress.update - epoch * self._per_epoch
        batches = updates * self._recipe.accumulation
        return min(batches * self._recipe.batch_size, self._loader.total)

    def _tell(self, event: events.Event) -> None:
        if self._world.is_leader:
            self._world.link.tell(event)


INTERRUPTED = "interrupted"
DIVERGED = "the loss became NaN or infinite"
SPOILED = "weights became NaN or infinite"
UNFINISHED = (INTERRUPTED, DIVERGED, SPOILED)
"""Reasons for which the network is that of an epoch before."""
_TIME_UP = "max_seconds reached"
_STEPS_DONE = "max_steps reached"


def _floating(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _copy(network: nn.Module, into: State | None) -> State:
    """The weights, in memory of their own; reuses the last copy's."""
    state = network.state_dict()
    if into is None:
        return {name: tensor.detach().clone() for name, tensor in state.items()}
    for name, tensor in state.items():
        into[name].copy_(tensor)
    return into
