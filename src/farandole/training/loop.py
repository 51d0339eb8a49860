"""The training loop over mini-batches."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn

from farandole.errors import InputError, TrainingDiverged
from farandole.keras_models import KerasOptimizer
from farandole.parallel import Totals, trace
from farandole.training import events, optimizers
from farandole.training.context import Clock, TrainingContext
from farandole.training.driver_decisions import STOPPED, decided
from farandole.training.early_stopping import BestWeights
from farandole.training.job import (
    INTERRUPTED,
    LOSS_DIVERGED,
    PREEMPTED,
    REJOINED,
    TIME_UP,
    UNFINISHED,
    WEIGHTS_DIVERGED,
    LoopState,
)
from farandole.training.loop_checkpoints import LoopCheckpoints, Position, Start
from farandole.training.schedules import LearningRateScheduler
from farandole.training.stragglers import StragglerWatch
from farandole.training.tally import Tally

_STEPS_DONE = "max_steps reached"


class Loop:
    """Trains one network on one worker, in step with the others."""

    def __init__(self, context: TrainingContext) -> None:
        recipe = context.recipe
        self.context = context
        self._recipe = recipe
        self._loader = context.loader
        self._optimizer = optimizers.make(
            recipe.optimizer,
            context.groups,
            recipe.learning_rate,
            recipe.optimizer_options,
            context.network,
        )
        context.sync.set_optimizer(self._optimizer)
        self._per_epoch = -(-context.loader.steps // recipe.accumulation)
        self._last_update = min(recipe.max_steps or 1 << 62, recipe.epochs * self._per_epoch)
        self._check_unfreeze_at()
        self._scheduler = LearningRateScheduler(
            self._optimizer,
            recipe.schedule,
            per=recipe.schedule_per,
            warmup=recipe.warmup,
            updates=self._last_update,
            updates_per_epoch=self._per_epoch,
        )
        self._best = BestWeights(context)
        self._clock = Clock(recipe.max_seconds, context.caching_seconds)
        self._checkpoints = LoopCheckpoints(
            context, self._optimizer, self._scheduler, self._best, self._clock
        )
        self._start = Start()
        # Passes that all make together take as long as the slowest: there, nobody can be told.
        self._watch = (
            None
            if context.passes.is_collective
            else StragglerWatch(context.world.rank, context.world.size)
        )

    def _check_unfreeze_at(self) -> None:
        at, most = self._recipe.unfreeze_at, self._recipe.max_steps
        before = 0 if at is None else (at - 1) * self._per_epoch
        if most is not None and most <= before:
            raise InputError(
                f"max_steps={most} ends training before unfreeze_at={at}: there are {before} steps "
                "before that epoch. Raise max_steps, or unfreeze earlier."
            )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._start = self._checkpoints.restore(state)

    def run(self) -> LoopState:
        """All epochs, or as many as there is reason for."""
        progress = self._run_epochs()
        if progress.reason in UNFINISHED:
            self._restore_finished_epoch(progress)
        else:
            self._finalize()
            self._best.restore_best()
        return progress

    def _finalize(self) -> None:
        """Let an optimizer that keeps a moving average of the weights put it into their place."""
        if isinstance(self._optimizer, KerasOptimizer):
            self._optimizer.finalize()

    def close(self) -> None:
        """Wait until the last checkpoint is on disk."""
        self._checkpoints.close()

    def _run_epochs(self) -> LoopState:
        progress, first = self._start.progress, self._start.position.epoch
        epochs = range(first, self._recipe.epochs if not self._start.ended else first)
        if epochs and self._ask_driver(first, None):
            progress.reason = STOPPED
            return progress
        for epoch in epochs:
            tally = self._start_epoch(epoch)
            done = self._start.position if epoch == first else Position()
            start = time.perf_counter() - done.seconds
            ended = self._train_epoch(epoch, tally, progress, done)
            ended = self._end_epoch(epoch, ended, tally, progress, start)
            if ended in UNFINISHED:
                progress.reason = str(ended)
                return progress
            progress.reason = self._reason_to_stop(epoch, ended, progress) or progress.reason
            if self._ask_driver(epoch + 1, progress.history[-1]):
                progress.reason = STOPPED
            is_last = progress.reason != LoopState().reason or epoch + 1 == self._recipe.epochs
            if self._save_epoch(epoch, progress, is_last):
                progress.reason = REJOINED
            if is_last or progress.reason == REJOINED:
                break
        return progress

    def _ask_driver(self, finished: int, row: Mapping[str, float] | None) -> bool:
        """Let callbacks on the driver set the learning rate; gives whether they end training."""
        told = decided(self.context, finished, row, self._scheduler.base)
        if told.learning_rate is not None:
            self._scheduler.base = told.learning_rate
        return told.stop

    def _reason_to_stop(self, epoch: int, ended: str | None, progress: LoopState) -> str | None:
        """Why a finished epoch is the last, if it is; takes note of what it has achieved."""
        row, stopping = progress.history[-1], self._best.stopping
        self._best.observe(row)
        self._scheduler.after_epoch(row[stopping.monitor])
        unfreezes_later = epoch + 1 < (self._recipe.unfreeze_at or 0)
        if ended is None and stopping.exhausted and not unfreezes_later:
            return f"no better {stopping.monitor}"
        return ended

    def _save_epoch(self, epoch: int, progress: LoopState, is_last: bool) -> bool:
        """A checkpoint between two epochs, where one is due, or the best are kept, or it ends.

        Gives whether workers are to begin again with more of them.
        """
        if not self._checkpoints.enabled:
            return False
        link = self.context.world.link
        mine = [self._checkpoints.is_due(progress.update), link.restart_requested()]
        sums = self.context.sync.reduce_sums(torch.tensor(mine, dtype=torch.float64))
        due, restart = (sums > 0).tolist()
        if is_last or due or restart or self._checkpoints.keeps_best:
            position, tally = Position(epoch=epoch + 1), self.context.new_tally()
            row = progress.history[-1]
            score = row[self._best.stopping.monitor] if self._checkpoints.keeps_best else None
            self._checkpoints.save_loop(progress, tally, position, ended=is_last, score=score)
        return restart and not is_last

    def _start_epoch(self, epoch: int) -> Tally:
        tally = self.context.new_tally()
        if epoch + 1 == self._recipe.unfreeze_at:
            self.context.unfreeze()
            self._best.stopping.start_over()
        self.context.set_training_mode()
        if epoch == self._start.position.epoch:
            self._start.enter(tally)
        return tally

    def _train_epoch(
        self, epoch: int, tally: Tally, progress: LoopState, done: Position
    ) -> str | None:
        """The updates of an epoch that are left; why they ended too soon, if they did."""
        accumulation, start = self._recipe.accumulation, time.perf_counter() - done.seconds
        steps = islice(self._loader.epoch(epoch), done.updates * accumulation, None)
        while group := list(islice(steps, accumulation)):
            self._scheduler.before_update(progress.update)
            try:
                totals = self._update(group, tally, progress.update)
            except Exception as error:
                error.add_note(f"(in update {progress.update + 1})")
                raise
            rate = self._scheduler.learning_rate
            progress.steps.append((epoch + 1, rate, totals.mean_loss))
            if self._recipe.stop_on_nan and not math.isfinite(totals.loss):
                return LOSS_DIVERGED
            self._scheduler.after_update()
            progress.update += 1
            self._report(epoch, progress, totals)
            self._save_update(epoch, progress, tally, totals, time.perf_counter() - start)
            if totals.preempted:
                return PREEMPTED
            if totals.interrupted:
                return INTERRUPTED
            if totals.expired:
                return TIME_UP
            if progress.update >= self._last_update and self._recipe.max_steps:
                return _STEPS_DONE
        return None

    def _save_update(
        self, epoch: int, progress: LoopState, tally: Tally, totals: Totals, seconds: float
    ) -> None:
        """A checkpoint after an update, where one is due and can be."""
        ends = totals.interrupted or totals.preempted
        updates = progress.update - epoch * self._per_epoch
        due = totals.checkpoint and updates < self._per_epoch  # or it comes with the epoch's end
        if self._checkpoints.enabled and (due or ends) and self.context.sync.in_step:
            position = Position(epoch=epoch, updates=updates, seconds=seconds)
            self._checkpoints.save_loop(progress, tally, position)

    def _update(self, group: Sequence[torch.Tensor], tally: Tally, update: int) -> Totals:
        """One step of the optimizer: rows → batches → gradients of all workers → parameters."""
        context = self.context
        batches = [rows for rows in group if len(rows) or context.passes.is_collective]
        context.sync.zero_grad(len(batches))
        loss = weight = 0.0
        for rows in batches:
            start = time.perf_counter()
            with trace.span("compute"):
                more = context.passes.forward_backward(context.batcher(rows), tally)
            if self._watch is not None:
                self._watch.add(time.perf_counter() - start, len(rows))
            loss, weight = loss + more[0], weight + more[1]
        mine = Totals(
            loss,
            weight,
            interrupted=context.world.link.stop_requested(),
            expired=self._clock.has_expired(),
            checkpoint=self._checkpoints.is_due(update + 1),
            preempted=context.world.link.preempted(),
        )
        totals = context.sync.reduce_gradients(mine)
        if totals.weight > 0 and math.isfinite(totals.loss):
            self._clip()
            with trace.span("step"):
                context.sync.step(self._optimizer)
        return totals

    def _clip(self) -> None:
        if self._recipe.clip_value is not None:
            nn.utils.clip_grad_value_(self.context.network.parameters(), self._recipe.clip_value)
        if self._recipe.clip_norm is not None:
            self.context.sync.clip_norm(self._recipe.clip_norm)

    def _end_epoch(
        self, epoch: int, ended: str | None, tally: Tally, progress: LoopState, start: float
    ) -> str | None:
        """Agree on why the epoch ended, if too soon; else validate, and add to the history."""
        context = self.context
        ended = context.sync.agree_on_stop(ended)
        if ended not in UNFINISHED:
            ended = self._deferred_reason() or ended
        if ended in UNFINISHED:
            return ended
        seconds = time.perf_counter() - start
        row = {"epoch": float(epoch + 1), **context.history_columns("train", tally, self._watch)}
        if self._watch is not None:
            context.report_stragglers(epoch + 1, self._watch)
        context.sync.end_epoch(self._loader.own_rows)
        if self._recipe.stop_on_nan and self._best.have_diverged():
            return WEIGHTS_DIVERGED
        if context.validates:
            row |= context.evaluate()
        row |= {
            "learning_rate": self._scheduler.learning_rate,
            "seconds": seconds,
            "rows_per_second": self._rows_used(epoch, progress) / seconds if seconds else 0.0,
        }
        progress.history.append(row)
        context.emit(events.EpochEnded(epoch=epoch + 1, row=row))
        return ended

    def _deferred_reason(self) -> str | None:
        """Why training has to end, if only one worker knew so far."""
        delayed = self.context.sync.delayed_totals()
        if self._recipe.stop_on_nan and not math.isfinite(delayed.loss):
            return LOSS_DIVERGED
        if delayed.preempted:
            return PREEMPTED
        if delayed.interrupted:
            return INTERRUPTED
        return TIME_UP if delayed.expired else None

    def _restore_finished_epoch(self, progress: LoopState) -> None:
        """Go back to the weights that are kept; raises if no epoch was finished."""
        if self._best.restore() or progress.reason in (INTERRUPTED, PREEMPTED, REJOINED):
            return
        _, rate, loss = progress.steps[-1]
        what = f"The loss became {loss} in update {progress.update + 1}"
        if math.isfinite(loss):  # it was another worker's, or an update before
            what = f"The loss became NaN or infinite in one of {progress.update} updates"
        if progress.reason == WEIGHTS_DIVERGED:
            what = f"Weights became NaN or infinite in one of {progress.update} updates"
        raise TrainingDiverged(
            f"{what}, before the first epoch was over. Lower learning_rate (it was {rate:g}), "
            "scale the features, or clip gradients with clip_norm."
        )

    def _report(self, epoch: int, progress: LoopState, totals: Totals) -> None:
        if not self.context.world.is_leader or not self._clock.should_report():
            return
        rows = epoch * self._loader.total + self._rows_used(epoch, progress)
        self.context.emit(
            events.StepEnded(
                epoch=epoch + 1,
                step=progress.update,
                loss=totals.mean_loss,
                rows_per_second=rows / self._clock.seconds,
            )
        )

    def _rows_used(self, epoch: int, progress: LoopState) -> int:
        """How many rows this epoch has used so far, over all workers."""
        updates = progress.update - epoch * self._per_epoch
        batches = updates * self._recipe.accumulation
        return min(batches * self._recipe.batch_size, self._loader.total)
