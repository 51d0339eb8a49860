"""The Spark job that the workers are tasks of: collected in a thread, cancelled in bounded time."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from farandole import _spark
from farandole.engines.base import DEFAULT_HEARTBEAT
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.interrupt import Interrupts
from farandole.engines.spark_executors import ExecutorWatch
from farandole.engines.spark_slots import SlotWatch
from farandole.errors import WorkerLost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CANCEL_SECONDS = 10.0
_REASON_SECONDS = 2.0
"""How long Spark may take to say why a worker is gone, which it often knows best."""
_END_SECONDS = 6.0
"""How long executors may take to end cancelled tasks: they allow Python processes two seconds."""
_LAST_TASKS_SECONDS = 3.0
_NOTICE_SECONDS = 15.0


class SparkJob:
    """Collects the workers' results in a thread of its own, so that Ctrl-C is handled in order.

    `given_up` is asked all the time for a reason to end the job that only the engine knows.
    """

    def __init__(
        self,
        session: SparkSession,
        results: DataFrame,
        notice: StartNotice,
        more: SlotWatch | None = None,
        heartbeat: float = DEFAULT_HEARTBEAT,
        given_up: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._session = session
        self._results = results
        self._notice = notice
        self._more = more
        self._heartbeat = heartbeat
        self._given_up = given_up
        self._tag = f"farandole-{secrets.token_hex(8)}"
        self._table: pa.Table | None = None
        self._error: BaseException | None = None
        self._thread = _spark.thread(session, self._collect)

    def _collect(self) -> None:
        try:
            _spark.add_tag(self._session, self._tag)
            self._table = self._results.toArrow()
        except BaseException as error:
            self._error = error

    def table(
        self,
        endpoint: DriverEndpoint,
        monitor: HeartbeatMonitor,
        interrupts: Interrupts,
        stoppable: bool,
    ) -> pa.Table:
        """What the workers gave; raises what Spark or the driver's end of the links says."""
        self._thread.start()
        with ExecutorWatch(self._session, self._tag, self._heartbeat) as executors:
            while self._thread.is_alive():
                self._thread.join(0.1)
                self._notice.update(endpoint.connected)
                if self._more is not None and self._more.are_there():
                    endpoint.request_restart()
                if monitor.lost is not None:
                    monitor.kill_workers()  # what is stopped or locked hears nothing else
                found = endpoint.error or monitor.lost or executors.lost() or self._given_up()
                if found is not None:
                    self._give_up(found)
                if interrupts.count == 0:
                    continue
                if not stoppable or interrupts.count > 1 or endpoint.connected == 0:
                    self._cancel()
                    raise interrupts.error()
                endpoint.request_stop()
        if self._error is not None:
            raise self._error
        assert self._table is not None
        return self._table

    def places(self) -> Mapping[int, _spark.TaskPlace]:
        """Where Spark ran each rank, as far as it tells."""
        with suppress(Exception):  # the session may have been stopped meanwhile
            return _spark.task_places(self._session, self._tag)
        return {}

    def first_failure(self) -> str | None:
        """What Spark says of the task that failed first, as far as it tells."""
        with suppress(Exception):  # the session may have been stopped meanwhile
            return _spark.first_failure(self._session, self._tag)
        return None

    def let_tasks_end(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait a little, after an error, for tasks that Spark is ending: it tells of each."""
        deadline = time.monotonic() + _LAST_TASKS_SECONDS
        with suppress(Exception):  # the session may have been stopped meanwhile
            while kind and _spark.has_running_tasks(self._session, self._tag):
                if time.monotonic() > deadline:
                    return
                time.sleep(0.05)

    def replace_stuck_executors(self) -> None:
        """Have Spark replace executors that don't end their tasks, after a worker was lost.

        To Spark they are busy for two minutes more, and nothing else could run there. A job ends
        with the first of its tasks that fails, which seldom is the one of the lost worker.
        """
        deadline = time.monotonic() + _END_SECONDS
        with suppress(Exception):  # the session may have been stopped meanwhile
            while stuck := _spark.executors_running(self._session, self._tag):
                if time.monotonic() > deadline:
                    _spark.replace_executors(self._session, stuck)
                    return
                time.sleep(0.2)

    def _give_up(self, error: BaseException) -> None:
        """End the job and raise `error`; of a lost worker Spark may have the last word."""
        if not isinstance(error, WorkerLost):
            self._cancel()
            raise error
        self._thread.join(_REASON_SECONDS)
        if self._thread.is_alive():
            self._cancel()
            raise error

    def _cancel(self) -> None:
        """Again and again, because only what has already started can be cancelled.

        A thread that doesn't come back in time is left to itself: it holds nothing but the session.
        """
        deadline = time.monotonic() + _CANCEL_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            with suppress(Exception):  # the session may have been stopped meanwhile
                _spark.cancel(self._session, self._tag)
            self._thread.join(1)


class StartNotice:
    """Tells, once, that no worker has come in time: until all of them fit, Spark says nothing."""

    def __init__(self, workers: int, seconds: float = _NOTICE_SECONDS) -> None:
        self._workers = workers
        self._due = time.monotonic() + seconds
        self._done = False

    def update(self, connected: int) -> bool:
        """Whether the notice was given now, `connected` being how many workers have come."""
        self._done = self._done or connected > 0
        if self._done or time.monotonic() < self._due:
            return False
        self._done = True
        print(
            f"farandole: still waiting for {self._workers} workers to start; are all of Spark's "
            "slots busy? (Or they can't reach this driver: `farandole doctor` tells.)",
            file=sys.stderr,
            flush=True,
        )
        return True
