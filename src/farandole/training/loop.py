"""The training loop: the only one there is."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
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
from farandole.training.stopping import EarlyStopping, check_monitor
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
        per_epoch = -(-loader.steps // recipe.accumulation)
        self._last_update = min(recipe.max_steps or 1 << 62, recipe.epochs * per_epoch)
        self._pace = Pace(
            self._optimizer,
            recipe.schedule,
            per=recipe.schedule_per,
            warmup=recipe.warmup,
            updates=self._last_update,
            updates_per_epoch=per_epoch,
        )
        check_monitor(recipe.monitor, metrics, self._validates)
        default = "validation_loss" if self._validates else "train_loss"
        self._stopping = EarlyStopping(recipe.monitor or default, recipe.patience, recipe.min_delta)
        self._kept: State | None = None
        self._start = time.perf_counter()
        self._reported = self._start

    def run(self) -> Progress:
        """All epochs, or as many as there is reason for."""
        progress = Progress()
        for epoch in range(self._recipe.epochs):
            ended = self._epoch(epoch, progress)
            if ended in (INTERRUPTED, DIVERGED):
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
        if ended in (INTERRUPTED, DIVERGED):
            return ended
        seconds = time.perf_counter() - start
        row = {"epoch": float(epoch + 1), **self._result("train", tally)}
        self._sync.average_buffers(self._loader.own_rows)
        if self._validates:
            row |= self._evaluate()
        row |= {
            "learning_rate": self._pace.learning_rate,
            "seconds": seconds,
            "rows_per_second": self._loader.total / seconds if seconds else 0.0,
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

    def _fall_back(self, progress: Progress) -> None:
        """Go back to the last finished epoch."""
        if self._kept is not None:
            self._network.load_state_dict(self._kept)
        elif progress.reason == DIVERGED:
            rate = progress.steps[-1][1]
            raise TrainingDiverged(
                f"The loss became {progress.steps[-1][2]} in update {progress.update + 1}, before "
                f"the first epoch was over. Lower learning_rate (it was {rate:g}), scale the "
                "features, or clip gradients with clip_norm."
            )

    def _out_of_time(self) -> bool:
        limit = self._recipe.max_seconds
        return limit is not None and time.perf_counter() - self._start > limit

    def _report(self, epoch: int, progress: Progress, totals: Totals) -> None:
        now = time.perf_counter()
        if not self._world.is_leader or now - self._reported < _REPORT_SECONDS:
            return
        self._reported = now
        rows = progress.update * self._recipe.accumulation * self._recipe.batch_size
        self._tell(
            events.StepEnded(
                epoch=epoch + 1,
                step=progress.update,
                loss=totals.mean_loss,
                rows_per_second=rows / (now - self._start),
            )
        )

    def _tell(self, event: events.Event) -> None:
        if self._world.is_leader:
            self._world.link.tell(event)


INTERRUPTED = "interrupted"
DIVERGED = "the loss became NaN or infinite"
_TIME_UP = "max_seconds reached"
_STEPS_DONE = "max_steps reached"


def _copy(network: nn.Module, into: State | None) -> State:
    """The weights, in memory of their own; reuses the last copy's."""
    state = network.state_dict()
    if into is None:
        return {name: tensor.detach().clone() for name, tensor in state.items()}
    for name, tensor in state.items():
        into[name].copy_(tensor)
    return into
