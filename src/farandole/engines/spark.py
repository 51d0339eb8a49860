"""Workers as the tasks of one Spark barrier stage: classic Spark and Spark Connect alike."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farandole import _spark
from farandole.engines.base import DEFAULT_HEARTBEAT, MessageHandler, Task
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.failure import Failure
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.interrupt import Interrupts
from farandole.engines.serialization import PickledTask, load_result
from farandole.engines.spark_errors import translated
from farandole.engines.spark_job import SparkJob, StartNotice
from farandole.engines.spark_slots import REPLACEMENT_SECONDS, SlotWatch, settled_slots
from farandole.engines.spark_task import RESULT_COLUMNS, BarrierSpec, run_barrier_task
from farandole.engines.verdict import verdict
from farandole.engines.worker import Joined
from farandole.errors import InputError, LaunchError, NotEnoughSlots, PeerLost, WorkerLost
from farandole.world import LONGEST_WAIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOSS_SECONDS = 0.5
"""How long the news of a worker's death may take to be here."""


class SparkEngine:
    """Runs each worker as a barrier task of one stage, all at the same time.

    With `wanted_workers`, a run of fewer is asked to end with its epoch once so many can run.
    """

    name = "spark"

    def __init__(
        self, session: SparkSession | None = None, *, wanted_workers: int | None = None
    ) -> None:
        self._session = session
        self._wanted_workers = wanted_workers

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
        """Run one barrier stage; `rows` has exactly one partition a worker."""
        session = self.session
        self._check_barrier(num_workers)
        _spark.set_up_python(session)
        frame = rows if rows is not None else self._one_row_a_worker(num_workers)
        pickled = PickledTask(task)
        failures: list[Failure] = []

        def dispatch(rank: int, message: object) -> None:
            if isinstance(message, Failure):
                failures.append(message)
            elif not isinstance(message, Joined):
                on_message(rank, message)

        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            endpoint = stack.enter_context(self._endpoint(dispatch, task.encrypt))
            monitor = stack.enter_context(HeartbeatMonitor(endpoint.address.host, heartbeat))
            spec = BarrierSpec(
                task=pickled,
                driver=endpoint.address,
                heartbeat=monitor.address,
                run_name=f"farandole-{secrets.token_hex(16)}",
                one_host=_spark.is_local(session),
                timeout=timeout,
                join_timeout=join_timeout,
                has_rows=rows is not None,
            )
            results = frame.mapInArrow(
                partial(run_barrier_task, spec), RESULT_COLUMNS, barrier=True
            )
            more = SlotWatch(session, self._wanted_workers) if self._wanted_workers else None
            job = SparkJob(session, results, StartNotice(num_workers), more, heartbeat)
            try:
                table = job.table(endpoint, monitor, interrupts, task.stoppable)
            except Exception as error:
                if error is endpoint.error:
                    raise
                lost = monitor.wait_for_loss(_LOSS_SECONDS)
                known = verdict(failures, lost, finished=(), size=num_workers, timeout=timeout)
                secret, places = endpoint.address.secret, job.places()
                told = translated(error, failures, places, secret, lost=lost, known=known)
                if isinstance(told, WorkerLost | PeerLost):
                    job.replace_stuck_executors()
                raise told from told.__cause__  # and not from Spark's wall of text
        return _assembled(table, num_workers)

    def settled_slots(self, wanted: int, patience: float = REPLACEMENT_SECONDS) -> int:
        """How many tasks can run at once, after some time for executors that are on their way.

        `patience` is for Spark to replace executors that this session has had, and lost.
        """
        return settled_slots(self.session, wanted, patience)

    def _check_barrier(self, wanted: int) -> None:
        """Raise if Spark would refuse a barrier stage of so many tasks."""
        if _spark.has_dynamic_allocation(self.session):
            raise LaunchError(
                "Workers are tasks of one barrier stage, and Spark runs none while dynamic "
                "allocation is on: start the session with spark.dynamicAllocation.enabled=false, "
                "and as many executors as you need (spark.executor.instances)."
            )
        available = self.settled_slots(wanted)
        if available < wanted:
            raise NotEnoughSlots(wanted, available)

    def _one_row_a_worker(self, count: int) -> DataFrame:
        """What makes Spark start so many tasks, where there are no rows to feed them."""
        return (
            self.session.range(count).selectExpr("int(id) AS rank").repartitionById(count, "rank")
        )

    def _endpoint(self, on_message: MessageHandler, encrypt: bool) -> DriverEndpoint:
        try:
            return DriverEndpoint(_spark.driver_host(self.session), on_message, encrypt=encrypt)
        except OSError:  # a host name that this machine can't listen on: no live progress then
            return DriverEndpoint("127.0.0.1", on_message, encrypt=encrypt)


def _assembled(table: pa.Table, size: int) -> list[Any]:
    if table.num_rows == 0:  # Spark starts no task for a plan that it knows to be empty
        raise InputError("There are no rows to train on: the DataFrame is empty.")
    parts: dict[int, list[tuple[int, bytes]]] = {rank: [] for rank in range(size)}
    for rank, part, payload in zip(*(column.to_pylist() for column in table.columns), strict=True):
        parts[rank].append((part, payload))
    missing = [rank for rank, found in parts.items() if not found]
    if missing:
        raise LaunchError(f"Spark returned no result for rank {missing[0]} of {size}.")
    return [
        load_result(rank, b"".join(data for _, data in sorted(found)))
        for rank, found in parts.items()
    ]
