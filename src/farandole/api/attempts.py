"""Attempts to train: one launch of all workers after the other, until one of them ends well."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from farandole.api.checkpoints import with_newest_checkpoint
from farandole.api.restarts import RestartPolicy, run_attempts
from farandole.api.strategy_choice import check_strategy
from farandole.api.training_data import TrainingData
from farandole.arguments import check_flag, check_integer, check_seconds
from farandole.data import VIRTUAL_SHARDS, placed_rows
from farandole.devices import check_device
from farandole.engines import RayEngine, SparkEngine, Task
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


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """How many workers train and on what, how long they are waited for, how often they restart."""

    workers: int
    min_workers: int
    max_restarts: int
    timeout: float
    heartbeat: float
    encrypt: bool
    device: str = "auto"
    cpus: int | None = None

    def check(self) -> None:
        """Raise an InputError that names the argument."""
        check_integer("num_workers", self.workers)
        if self.workers > VIRTUAL_SHARDS:
            raise InputError(
                f"num_workers can be at most {VIRTUAL_SHARDS}. Received: {self.workers}"
            )
        check_integer("min_workers", self.min_workers)
        if self.min_workers > self.workers:
            raise InputError(
                f"min_workers can be at most num_workers, {self.workers}. "
                f"Received: {self.min_workers}"
            )
        check_integer("max_restarts", self.max_restarts, least=0)
        check_seconds("timeout", self.timeout)
        check_seconds("heartbeat", self.heartbeat)
        check_flag("encrypt", self.encrypt)
        check_device(self.device)
        if self.cpus is not None:
            check_integer("cpus_per_worker", self.cpus)

    def of(self, workers: int) -> RunLimits:
        """The same, where there are rows for so many workers only."""
        return replace(self, workers=workers, min_workers=min(self.min_workers, workers))


class Attempts:
    """One training, on workers that may be lost."""

    def __init__(
        self,
        job: TrainingJob,
        data: TrainingData,
        limits: RunLimits,
        dispatch: Callable[[int, object], None],
    ) -> None:
        self._job = job
        self._data = data
        self._limits = limits
        self._dispatch = dispatch
        self._workers = limits.workers
        self._has_run = False
        self._begun: float | None = None
        self.lost_seconds = 0.0
        """What went by before the last launch, in attempts that were lost."""

    def run(self) -> Sequence[Outcome]:
        """Launch, and launch again if need be and the policy allows it."""
        policy = RestartPolicy(self._limits.max_restarts)
        return run_attempts(
            self._launch,
            policy,
            last_saved=self._last_saved,
            before_restart=partial(self._before_restart, policy),
        )

    def _launch(self) -> Sequence[Outcome]:
        """All workers, from the newest checkpoint on; and all again, when lost ones are back."""
        outcomes = self._launch_again() if self._has_run else self._launch_once()
        while (reason := outcomes[0].progress.reason) == REJOINED:
            self._workers = self._limits.workers
            self._job = with_newest_checkpoint(self._job)
            self._tell_restart(f"{reason}: {self._limits.workers} can run", restart=0)
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
        now = time.perf_counter()
        if self._begun is None:
            self._begun = now
        self.lost_seconds = now - self._begun
        job, engine = self._job, self._data.engine
        rows: Any = None
        if self._data.frame is not None:
            shuffle, placement = job.recipe.shuffle, job.source.placement
            vectors, axes = self._data.vectors(job.columns), job.storage.axes
            rows = placed_rows(
                self._data.frame,
                job.columns,
                self._workers,
                shuffle=shuffle,
                placement=placement,
                vectors=[name for name in vectors if name not in axes],
                floating=job.storage.floating,
            )
        elif self._data.ray is not None:
            rows = self._data.ray.rows(job.columns.names, self._workers)
        if (
            self._workers < self._limits.workers
            and isinstance(engine, SparkEngine | RayEngine)
            and job.checkpoints
        ):
            engine = engine.wanting(self._limits.workers)
        limits = self._limits
        task = Task(
            partial(load, job),
            partial(work, job),
            encrypt=limits.encrypt,
            stoppable=True,
            device=limits.device,
            cpus=limits.cpus,
        )
        outcomes: Sequence[Outcome] = engine.run(
            task,
            self._workers,
            rows=rows,
            timeout=self._limits.timeout,
            heartbeat=self._limits.heartbeat,
            on_message=self._dispatch,
        )
        return outcomes

    def _last_saved(self) -> int:
        """The update of the newest checkpoint."""
        self._job = with_newest_checkpoint(self._job)
        plan = self._job.checkpoints
        return 0 if plan is None else plan.resumed or 0

    def _before_restart(self, policy: RestartPolicy, error: Exception) -> None:
        self._has_run = True
        self._workers = self._available_workers(error)
        self._tell_restart(str(error).splitlines()[0], policy.count)

    def _tell_restart(self, reason: str, restart: int) -> None:
        event = WorkersRestarted(
            reason=reason, restart=restart, most=self._limits.max_restarts, workers=self._workers
        )
        self._dispatch(0, event)

    def _available_workers(self, error: Exception) -> int:
        """How many workers there can be now; raises if those are too few."""
        engine, wanted = self._data.engine, self._limits.workers
        if isinstance(engine, RayEngine):
            options: Any = {"device": self._limits.device, "cpus": self._limits.cpus}
            if self._data.ray is not None and self._data.ray.is_computed:
                options["spare_cpus"] = 1
            available = min(engine.settled_slots(wanted, **options), wanted)
        elif isinstance(engine, SparkEngine):
            available = min(engine.settled_slots(wanted), wanted)
        else:
            return wanted
        if available < self._limits.min_workers:
            error.add_note(
                f"(Of {self._limits.workers} workers, {available} can run now, and min_workers is "
                f"{self._limits.min_workers}.)"
            )
            raise error
        try:
            check_strategy(self._job.strategy, self._job.network, self._job.recipe, available)
        except InputError as reason:
            error.add_note(f"(Going on with {available} workers isn't possible: {reason})")
            raise error from None
        return available
