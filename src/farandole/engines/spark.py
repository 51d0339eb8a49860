"""Workers as the tasks of one Spark stage: classic Spark and Spark Connect alike."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farandole import _spark
from farandole.arguments import check_seconds
from farandole.engines.base import DEFAULT_HEARTBEAT, MessageHandler, Task
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.failure import Failure
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.interrupt import Interrupts
from farandole.engines.pickled import Pickled
from farandole.engines.serialization import PickledTask, load_result
from farandole.engines.spark_errors import translated
from farandole.engines.spark_gang import START_SECONDS, Gang, check_speculation, most_slots
from farandole.engines.spark_job import SparkJob, StartNotice
from farandole.engines.spark_resources import TaskResources
from farandole.engines.spark_slots import REPLACEMENT_SECONDS, SlotWatch, settled_slots
from farandole.engines.spark_task import DELIVERED, RESULT_COLUMNS, TaskSpec, run_spark_task
from farandole.engines.verdict import verdict
from farandole.engines.worker import Joined
from farandole.errors import InputError, LaunchError, NotEnoughSlots, PeerLost, WorkerLost
from farandole.world import LONGEST_WAIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_IN_QUERY = 32 << 20
"""Bytes of a task that go with Spark's query: all of it is in the memory of the driver's JVM, and
Spark Connect takes 128 MB at most."""
_LOSS_SECONDS = 0.5
"""How long the news of a worker's death may take to be here."""


class SparkEngine:
    """Runs each worker as a task of one stage, all at the same time.

    The stage is a barrier stage, except with dynamic allocation, where Spark has none: there the
    tasks find each other through the driver, and those that come wait `start_timeout` seconds for
    the others. With `wanted_workers`, a run of fewer is asked to end with its epoch once so many
    can run.
    """

    name = "spark"

    def __init__(
        self,
        session: SparkSession | None = None,
        *,
        wanted_workers: int | None = None,
        start_timeout: float = START_SECONDS,
    ) -> None:
        check_seconds("start_timeout", start_timeout)
        self._session = session
        self._wanted_workers = wanted_workers
        self._start_timeout = start_timeout

    def wanting(self, workers: int) -> SparkEngine:
        """The same, which ends an epoch early on when so many workers could run."""
        return SparkEngine(self._session, wanted_workers=workers, start_timeout=self._start_timeout)

    @property
    def session(self) -> SparkSession:
        """The session that was given, or else the active one; raises if it was stopped."""
        if self._session is None:
            return _spark.require_session()
        _spark.check_running(self._session)
        return self._session

    def run(
        self,
        task: Task,
        num_workers: int,
        *,
        rows: DataFrame | None = None,
        timeout: float,
        heartbeat: float = DEFAULT_HEARTBEAT,
        join_timeout: float = LONGEST_WAIT,
        on_message: MessageHandler,
    ) -> list[Any]:
        """Run one stage; `rows` has exactly one partition a worker."""
        session = self.session
        resources = TaskResources.of(session, task.device, task.cpus)
        self._check_room(num_workers, resources)
        _spark.set_up_python(session)
        frame = rows if rows is not None else self._one_row_a_worker(num_workers)
        pickled, failures = PickledTask(task), list[Failure]()
        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            dispatch = partial(_dispatch, failures, on_message)
            endpoint = stack.enter_context(self._endpoint(dispatch, task.encrypt, pickled))
            monitor = stack.enter_context(HeartbeatMonitor(endpoint.address.host, heartbeat))
            gang = self._gang(stack, endpoint, num_workers)
            stage = _Stage(num_workers, timeout, endpoint, monitor, gang, failures)
            spec = stage.spec(
                task=pickled if pickled.pickled.nbytes <= _MOST_IN_QUERY else None,
                one_host=_spark.is_local(session),
                join_timeout=join_timeout,
                has_rows=rows is not None,
            )
            results = frame.mapInArrow(
                partial(run_spark_task, spec),
                RESULT_COLUMNS,
                barrier=gang is None,
                profile=resources.profile,
            )
            more = SlotWatch(session, self._wanted_workers) if self._wanted_workers else None
            notice = StartNotice(num_workers)
            job = SparkJob(session, results, notice, more, heartbeat, stage.given_up)
            stack.enter_context(_spark.quiet_logs(session))
            stack.push(job.let_tasks_end)
            try:
                table = job.table(endpoint, monitor, interrupts, task.stoppable)
            except Exception as error:
                if error is endpoint.error:
                    raise
                told = stage.told(error, job)
                raise told from told.__cause__  # and not from Spark's wall of text
            return _assembled(table, endpoint, num_workers)

    def settled_slots(self, wanted: int, patience: float = REPLACEMENT_SECONDS) -> int:
        """How many tasks can run at once, after some time for executors that are on their way.

        `patience` is for Spark to replace executors that this session has had, and lost. With
        dynamic allocation those that are wanted come when they are needed.
        """
        if _spark.has_dynamic_allocation(self.session):
            most = most_slots(self.session, _spark.task_cpus(self.session))
            return max(_spark.slots(self.session), int(min(wanted, most)))
        return settled_slots(self.session, wanted, patience)

    def _check_room(self, wanted: int, resources: TaskResources) -> None:
        """Raise if Spark can't run so many tasks at once."""
        session = self.session
        if _spark.has_dynamic_allocation(session):
            check_speculation(session)
            cpus = resources.cpus or _spark.task_cpus(session)
            available = most_slots(session, cpus)
        else:
            available = settled_slots(session, wanted, profile=resources.profile)
        if available < wanted:
            raise NotEnoughSlots(wanted, int(available), resources.too_few(wanted, int(available)))

    def _gang(self, stack: ExitStack, endpoint: DriverEndpoint, size: int) -> Gang | None:
        """Where ordinary tasks meet; None: in a barrier stage."""
        if not _spark.has_dynamic_allocation(self.session):
            return None
        host, credentials = endpoint.address.host, endpoint.address.credentials
        return stack.enter_context(Gang(host, credentials, size, self._start_timeout))

    def _one_row_a_worker(self, count: int) -> DataFrame:
        """What makes Spark start so many tasks, where there are no rows to feed them."""
        return (
            self.session.range(count).selectExpr("int(id) AS rank").repartitionById(count, "rank")
        )

    def _endpoint(
        self, on_message: MessageHandler, encrypt: bool, task: PickledTask
    ) -> DriverEndpoint:
        options: Any = {"encrypt": encrypt, "task": task.pickled}
        try:
            return DriverEndpoint(_spark.driver_host(self.session), on_message, **options)
        except OSError:  # a host name that this machine can't listen on: no live progress then
            return DriverEndpoint("127.0.0.1", on_message, **options)


@dataclass(frozen=True)
class _Stage:
    """What the driver has of the workers of one stage."""

    size: int
    timeout: float
    endpoint: DriverEndpoint
    monitor: HeartbeatMonitor
    gang: Gang | None
    failures: list[Failure]

    def spec(self, **options: Any) -> TaskSpec:
        """What each of its tasks is told."""
        return TaskSpec(
            size=self.size,
            timeout=self.timeout,
            driver=self.endpoint.address,
            heartbeat=self.monitor.address,
            run_name=f"farandole-{secrets.token_hex(16)}",
            gang=self.gang.address if self.gang else None,
            **options,
        )

    def given_up(self) -> Exception | None:
        """Why a job of ordinary tasks is over: Spark would run the failed ones again."""
        if self.gang is None:
            return None
        cause = next((failure for failure in self.failures if not failure.lost_peer), None)
        return self.gang.missing() if cause is None else cause.to_error()

    def told(self, error: Exception, job: SparkJob) -> Exception:
        """What to raise in the place of an error of Spark's."""
        lost = self.monitor.wait_for_loss(_LOSS_SECONDS)
        known = verdict(self.failures, lost, finished=(), size=self.size, timeout=self.timeout)
        told = translated(
            error,
            self.failures,
            job.places(),
            self.endpoint.address.secret,
            lost=lost,
            known=known,
            first=job.first_failure() if self.gang and self.gang.has_begun else None,
        )
        if isinstance(told, WorkerLost | PeerLost):
            job.replace_stuck_executors()
        return told


def _dispatch(
    failures: list[Failure], on_message: MessageHandler, rank: int, message: object
) -> Any:
    """Keep the failures of workers, and hand on what is for others; gives their answer."""
    if isinstance(message, Failure):
        failures.append(message)
    return None if isinstance(message, Failure | Joined) else on_message(rank, message)


def _assembled(table: pa.Table, endpoint: DriverEndpoint, size: int) -> list[Any]:
    if table.num_rows == 0:  # Spark starts no task for a plan that it knows to be empty
        raise InputError("There are no rows to train on: the DataFrame is empty.")
    parts: dict[int, list[tuple[int, bytes]]] = {rank: [] for rank in range(size)}
    for rank, part, payload in zip(*(column.to_pylist() for column in table.columns), strict=True):
        parts[rank].append((part, payload))
    results = {rank: _result(found, endpoint, rank) for rank, found in parts.items()}
    missing = [rank for rank, result in results.items() if result is None]
    if missing:
        raise LaunchError(f"Spark returned no result for rank {missing[0]} of {size}.")
    return [load_result(rank, result) for rank, result in results.items() if result is not None]


def _result(
    parts: list[tuple[int, bytes]], endpoint: DriverEndpoint, rank: int
) -> Pickled | bytes | None:
    """What came through Spark in parts, or over the link."""
    if [part for part, _ in parts] == [DELIVERED]:
        return endpoint.payload_of(rank)
    return b"".join(payload for _, payload in sorted(parts)) if parts else None
