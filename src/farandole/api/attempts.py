"""Attempts to train: one launch of all workers after the other, until one of them ends well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from farandole.api.checkpoints import with_newest_checkpoint
from farandole.api.restarts import RestartPolicy, run_attempts
from farandole.api.strategy_choice import check_strategy
from farandole.data import placed_rows
from farandole.engines import Engine, SparkEngine, Task
from farandole.errors import InputError, NotEnoughSlots, WorkerLost
from farandole.training import (
    PREEMPTED,
    REJOINED,
    Outcome,
    TrainingJob,
    WorkersRestarted,
    load,
    work,
)


@dataclass
class Attempts:
    """One training, on workers that may be lost."""

    job: TrainingJob
    engine: Engine
    frame: Any
    """The DataFrame whose rows the engine feeds; None: workers read theirs."""
    workers: int
    min_workers: int
    max_restarts: int
    timeout: float
    heartbeat: float
    encrypt: bool
    dispatch: Callable[[int, object], None]

    def run(self) -> Sequence[Outcome]:
        """Launch, and launch again if need be and the policy allows it."""
        self._wanted, self._has_run = self.workers, False
        policy = RestartPolicy(self.max_restarts)
        return run_attempts(
            self._launch,
            policy,
            last_saved=self._last_saved,
            before_restart=partial(self._before_restart, policy),
        )

    def _launch(self) -> Sequence[Outcome]:
        """All workers, from the newest checkpoint on; and all again, when lost ones are back."""
        outcomes = self._launch_again() if self._has_run else self._launch_once()
        self._has_run = True
        while (reason := outcomes[0].progress.reason) == REJOINED:
            self.workers = self._wanted
            self._tell_restart(f"{reason}: {self._wanted} can run", restart=0)
            outcomes = self._launch_again()
        if reason == PREEMPTED:
            raise WorkerLost(None, f"{PREEMPTED} (SIGTERM)")
        return outcomes

    def _launch_again(self) -> Sequence[Outcome]:
        """The same, when slots were there before: if they are gone, that is bad luck."""
        try:
            return self._launch_once()
        except NotEnoughSlots as error:
            raise WorkerLost(None, str(error)) from None

    def _launch_once(self) -> Sequence[Outcome]:
        self.job = job = with_newest_checkpoint(self.job)
        rows, engine = None, self.engine
        if self.frame is not None:
            shuffle, placement = job.recipe.shuffle, job.source.placement
            rows = placed_rows(
                self.frame, job.columns, self.workers, shuffle=shuffle, placement=placement
            )
        if self.workers < self._wanted and isinstance(engine, SparkEngine) and job.checkpoints:
            engine = SparkEngine(engine.session, wanted_workers=self._wanted)
        task = Task(partial(load, job), partial(work, job), encrypt=self.encrypt, stoppable=True)
        outcomes: Sequence[Outcome] = engine.run(
            task,
            self.workers,
            rows=rows,
            timeout=self.timeout,
            heartbeat=self.heartbeat,
            on_message=self.dispatch,
        )
        return outcomes

    def _last_saved(self) -> int:
        """The update of the newest checkpoint."""
        self.job = with_newest_checkpoint(self.job)
        plan = self.job.checkpoints
        return 0 if plan is None else plan.resumed or 0

    def _before_restart(self, policy: RestartPolicy, error: Exception) -> None:
        self.workers = self._available_workers(error)
        self._tell_restart(str(error).splitlines()[0], policy.count)

    def _tell_restart(self, reason: str, restart: int) -> None:
        event = WorkersRestarted(
            reason=reason, restart=restart, most=self.max_restarts, workers=self.workers
        )
        self.dispatch(0, event)

    def _available_workers(self, error: Exception) -> int:
        """How many workers there can be now; raises if those are too few."""
        if not isinstance(self.engine, SparkEngine):
            return self._wanted
        available = min(self.engine.settled_slots(self._wanted), self._wanted)
        if available < self.min_workers:
            error.add_note(
                f"(Of {self._wanted} workers, {available} can run now, and min_workers is "
                f"{self.min_workers}.)"
            )
            raise error
        try:
            check_strategy(self.job.strategy, self.job.network, self.job.recipe, available)
        except InputError as reason:
            error.add_note(f"(Going on with {available} workers isn't possible: {reason})")
            raise error from None
        return available
