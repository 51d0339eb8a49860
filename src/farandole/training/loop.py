"""The training loop over mini-batches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import nn

from farandole.errors import InputError, TrainingDiverged
from farandole.parallel import Totals, trace
from farandole.training import events, optimizers
from farandole.training.metrics import Tally
from farandole.training.schedules import Pace
from farandole.training.stage import (
    DIVERGED,
    INTERRUPTED,
    SPOILED,
    TIME_UP,
    UNFINISHED,
    Clock,
    Keeper,
    Stage,
)

_STEPS_DONE = "max_steps reached"


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

    def __init__(self, stage: Stage) -> None:
        recipe = stage.recipe
        self._stage = stage
        self._recipe = recipe
        self._network = stage.network
        self._loader = stage.loader
        self._optimizer = optimizers.make(
            recipe.optimizer, stage.groups, recipe.learning_rate, recipe.optimizer_options
        )
        stage.sync.set_optimizer(self._optimizer)
        self._per_epoch = -(-stage.loader.steps // recipe.accumulation)
        self._last_update = min(recipe.max_steps or 1 << 62, recipe.epochs * self._per_epoch)
        self._check_thaw()
        self._pace = Pace(
            self._optimizer,
            recipe.schedule,
            per=recipe.schedule_per,
            warmup=recipe.warmup,
            updates=self._last_update,
            updates_per_epoch=self._per_epoch,
        )
        self._keeper = Keeper(stage)
        self._clock = Clock(recipe.max_seconds, stage.spent)

    def _check_thaw(self) -> None:
        at, most = self._recipe.unfreeze_at, self._recipe.max_steps
        before = 0 if at is None else (at - 1) * self._per_epoch
        if most is not None and most <= before:
            raise InputError(
                f"max_steps={most} ends training before unfreeze_at={at}: there are {before} steps "
                "before that epoch. Raise max_steps, or unfreeze earlier."
            )

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
            self._keeper.see(row)
            stopping = self._keeper.stopping
            self._pace.after_epoch(row[stopping.monitor])
            waiting = epoch + 1 < (self._recipe.unfreeze_at or 0)
            if ended is not None or (stopping.exhausted and not waiting):
                progress.reason = ended or f"no better {stopping.monitor}"
                break
        self._keeper.restore_best()
        return progress

    def _epoch(self, epoch: int, progress: Progress) -> str | None:
        """One epoch; why it ended too soon, if it did."""
        start = time.perf_counter()
        tally = self._stage.tally()
        if epoch + 1 == self._recipe.unfreeze_at:
            self._stage.thaw()
            self._keeper.stopping.start_over()
        self._stage.learning()
        ended = self._stage.sync.agree_on_stop(self._train(epoch, tally, progress))
        if ended not in UNFINISHED:
            ended = self._late_reason() or ended
        if ended in UNFINISHED:
            return ended
        seconds = time.perf_counter() - start
        row = {"epoch": float(epoch + 1), **self._stage.result("train", tally)}
        self._stage.sync.end_epoch(self._loader.own_rows)
        if self._recipe.stop_on_nan and self._keeper.is_spoiled():
            return SPOILED
        if self._stage.validates:
            row |= self._stage.evaluate()
        row |= {
            "learning_rate": self._pace.learning_rate,
            "seconds": seconds,
            "rows_per_second": self._rows_used(epoch, progress) / seconds if seconds else 0.0,
        }
        progress.history.append(row)
        self._stage.tell(events.EpochEnded(epoch=epoch + 1, row=row))
        return ended

    def _train(self, epoch: int, tally: Tally, progress: Progress) -> str | None:
        steps = self._loader.epoch(epoch)
        while group := list(islice(steps, self._recipe.accumulation)):
            self._pace.before_update(progress.update)
            totals = self._update(group, tally)
            progress.steps.append((epoch + 1, self._pace.learning_rate, totals.mean_loss))
            if self._recipe.stop_on_nan and not math.isfinite(totals.loss):
                return DIVERGED
            self._pace.after_update()
            progress.update += 1
            self._report(epoch, progress, totals)
            if totals.interrupted:
                return INTERRUPTED
            if totals.expired:
                return TIME_UP
            if progress.update >= self._last_update and self._recipe.max_steps:
                return _STEPS_DONE
        return None

    def _late_reason(self) -> str | None:
        """Why training has to end, if only one worker knew so far."""
        late = self._stage.sync.delayed_totals()
        if self._recipe.stop_on_nan and not math.isfinite(late.loss):
            return DIVERGED
        if late.interrupted:
            return INTERRUPTED
        return TIME_UP if late.expired else None

    def _update(self, group: Sequence[torch.Tensor], tally: Tally) -> Totals:
        stage = self._stage
        batches = [rows for rows in group if len(rows) or stage.stepper.is_joint]
        stage.sync.zero_grad(len(batches))
        loss = weight = 0.0
        for rows in batches:
            with trace.span("compute"):
                more_loss, more_weight = stage.stepper.learn(stage.batcher(rows), tally)
            loss, weight = loss + more_loss, weight + more_weight
        mine = Totals(loss, weight, stage.world.link.stop_requested(), self._clock.is_up())
        totals = stage.sync.reduce_gradients(mine)
        if totals.weight > 0 and math.isfinite(totals.loss):
            self._clip()
            with trace.span("step"):
                stage.sync.step(self._optimizer)
        return totals

    def _clip(self) -> None:
        if self._recipe.clip_value is not None:
            nn.utils.clip_grad_value_(self._network.parameters(), self._recipe.clip_value)
        if self._recipe.clip_norm is not None:
            self._stage.sync.clip_norm(self._recipe.clip_norm)

    def _fall_back(self, progress: Progress) -> None:
        """Go back to the last finished epoch."""
        if self._keeper.fall_back() or progress.reason == INTERRUPTED:
            return
        _, rate, loss = progress.steps[-1]
        what = f"The loss became {loss} in update {progress.update + 1}"
        if math.isfinite(loss):  # it was another worker's, or an update before
            what = f"The loss became NaN or infinite in one of {progress.update} updates"
        if progress.reason == SPOILED:
            what = f"Weights became NaN or infinite in one of {progress.update} updates"
        raise TrainingDiverged(
            f"{what}, before the first epoch was over. Lower learning_rate (it was {rate:g}), "
            "scale the features, or clip gradients with clip_norm."
        )

    def _report(self, epoch: int, progress: Progress, totals: Totals) -> None:
        if not self._stage.world.is_leader or not self._clock.may_report():
            return
        rows = epoch * self._loader.total + self._rows_used(epoch, progress)
        self._stage.tell(
            events.StepEnded(
                epoch=epoch + 1,
                step=progress.update,
                loss=totals.mean_loss,
                rows_per_second=rows / self._clock.seconds,
            )
        )

    def _rows_used(self, epoch: int, progress: Progress) -> int:
        """How many rows this epoch has used so far, over all workers."""
        updates = progress.update - epoch * self._per_epoch
        batches = updates * self._recipe.accumulation
        return min(batches * self._recipe.batch_size, self._loader.total)
