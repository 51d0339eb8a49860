"""Workers as the tasks of one Spark barrier stage: classic Spark and Spark Connect alike."""

from __future__ import annotations

import re
import secrets
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farandole import _spark
from farandole.engines.base import MessageHandler, Task
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.failure import Failure, first_cause
from farandole.engines.interrupt import Interrupts
from farandole.engines.serialization import PickledTask, load_result
from farandole.engines.spark_task import RESULT_COLUMNS, BarrierSpec, run_barrier_task
from farandole.errors import InputError, LaunchError, NotEnoughSlots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTLING_SECONDS = 3.0
"""How long to wait for one more executor; ten times that for the first."""
_CANCEL_SECONDS = 20.0
_NOTICE_SECONDS = 15.0


class SparkEngine:
    """Runs each worker as a barrier task of one stage, all at the same time."""

    name = "spark"

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session

    @property
    def session(self) -> SparkSession:
        """The session that was given, or else the active one."""
        return self._session or _spark.require_session()

    def run(
        self,
        task: Task,
        num_workers: int,
        *,
        rows: DataFrame | None = None,
        timeout: float,
        on_message: MessageHandler,
    ) -> list[Any]:
        """Run one barrier stage; `rows` has exactly one partition a worker."""
        self._check_slots(num_workers)
        _spark.use_this_python(self.session)
        frame = rows if rows is not None else self._one_row_a_worker(num_workers)
        pickled = PickledTask(task)
        failures: list[Failure] = []

        def dispatch(rank: int, message: object) -> None:
            if isinstance(message, Failure):
                failures.append(message)
            else:
                on_message(rank, message)

        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            endpoint = stack.enter_context(self._endpoint(dispatch, task.encrypt))
            spec = BarrierSpec(
                task=pickled,
                driver=endpoint.address,
                run_name=f"farandole-{secrets.token_hex(16)}",
                one_host=_spark.is_local(self.session),
                timeout=timeout,
                has_rows=rows is not None,
            )
            results = frame.mapInArrow(
                partial(run_barrier_task, spec), RESULT_COLUMNS, barrier=True
            )
            collector = _Collector(self.session, results, _StartNotice(num_workers))
            try:
                table = collector.table(endpoint, interrupts, task.stoppable)
            except Exception as error:
                translated = _translated(error, failures, endpoint.address.secret)
                raise translated from translated.__cause__  # and not from Spark's wall of text
        return _assembled(table, num_workers)

    def _check_slots(self, wanted: int) -> None:
        """Raise unless so many tasks can run at once."""
        available = self.settled_slots(wanted)
        if available < wanted:
            raise NotEnoughSlots(wanted, available)

    def settled_slots(self, wanted: int) -> int:
        """How many tasks can run at once; for more than there are, a cluster gets a moment."""
        available, since = _spark.slots(self.session), time.monotonic()
        while available < wanted and not _spark.is_local(self.session):
            patience = _SETTLING_SECONDS if available else 10 * _SETTLING_SECONDS
            if time.monotonic() - since > patience:
                break
            time.sleep(0.2)
            before, available = available, _spark.slots(self.session, fresh=True)
            since = since if before == available else time.monotonic()
        return available

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


class _Collector:
    """Collects in a thread of its own, so that Ctrl-C can be handled in order."""

    def __init__(self, session: SparkSession, results: DataFrame, notice: _StartNotice) -> None:
        self._session = session
        self._results = results
        self._notice = notice
        self._tag = f"farandole-{secrets.token_hex(8)}"
        self._table: pa.Table | None = None
        self._error: BaseException | None = None
        self._thread = _spark.thread(session, self._collect)

    def _collect(self) -> None:
        _spark.add_tag(self._session, self._tag)
        try:
            self._table = self._results.toArrow()
        except BaseException as error:
            self._error = error

    def table(self, endpoint: DriverEndpoint, interrupts: Interrupts, stoppable: bool) -> pa.Table:
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(0.1)
            self._notice.update(endpoint.connected)
            if endpoint.error is not None:
                self._cancel()
                raise endpoint.error
            if interrupts.count == 0:
                continue
            if not stoppable or interrupts.count > 1 or endpoint.connected == 0:
                self._cancel()
                raise KeyboardInterrupt
            endpoint.request_stop()
        if self._error is not None:
            raise self._error
        assert self._table is not None
        return self._table

    def _cancel(self) -> None:
        """Again and again, because only what has already started can be cancelled."""
        deadline = time.monotonic() + _CANCEL_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            _spark.cancel(self._session, self._tag)
            self._thread.join(1)


class _StartNotice:
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


_BROKEN_TASK = re.compile(r"barrier task (?:Result|ShuffleMap)Task\(\d+, (\d+)\)")


def _translated(error: Exception, failures: list[Failure], secret: bytes) -> Exception:
    """Our worker's own exception, where Spark's wall of text contains one."""
    text = str(error)
    found = Failure.from_text(text, secret)
    known = [*failures, found] if found else failures
    failure = first_cause(known) if known else None
    broken = _BROKEN_TASK.search(text)
    if (failure is None or failure.lost_peer) and broken and "exited unexpectedly" in text:
        why = (
            "its Python process died without an error message, most often killed for lack of memory"
        )
        failure = Failure(int(broken[1]), why, "", None, lost_peer=False)
    if failure is not None:
        return failure.to_error()
    if "No module named 'farandole'" in text:
        return LaunchError(
            "The Python of Spark's workers has no farandole. Install it there, or point "
            "PYSPARK_PYTHON at an environment that has it before the session starts."
        )
    return error


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
