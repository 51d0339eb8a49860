"""Workers as the tasks of one Spark barrier stage: classic Spark and Spark Connect alike."""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farandole import _spark
from farandole.engines.base import MessageHandler, Task
from farandole.engines.channel import Address, Inbox, Outbox
from farandole.engines.failure import Failure, first_cause
from farandole.engines.interrupt import Interrupts
from farandole.engines.late import LateNotice
from farandole.engines.parcel import Parcel, unpack_result
from farandole.errors import InputError, LaunchError, NotEnoughSlots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from farandole.engines.rendezvous import Meeting

_CHUNK = 64 << 20
_RESULT = "rank int, part int, payload binary"
_ECHO_SECONDS = 5.0
"""How long a worker that merely lost a peer holds back, so that Spark hears the peer first."""
_SETTLING_SECONDS = 3.0
"""How long to wait for one more executor; ten times that for the first."""
_CANCEL_SECONDS = 20.0


@dataclass(frozen=True)
class BarrierJob:
    """All that a barrier task is told."""

    parcel: Parcel
    inbox: Address
    name: str
    """Secret and new for every run: under it workers of one host find each other."""
    one_host: bool
    """Whether all workers share one network stack for certain: Spark's local mode."""
    timeout: float
    fed: bool
    """Whether the rows that arrive are the task's data, or only what makes Spark start it."""


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
        frame = rows if rows is not None else self._seats(num_workers)
        parcel = Parcel(task)
        failures: list[Failure] = []

        def sort(rank: int, message: object) -> None:
            if isinstance(message, Failure):
                failures.append(message)
            else:
                on_message(rank, message)

        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            inbox = stack.enter_context(self._inbox(sort))
            name = f"farandole-{secrets.token_hex(16)}"
            one_host = _spark.is_local(self.session)
            job = BarrierJob(parcel, inbox.address, name, one_host, timeout, rows is not None)
            stage = frame.mapInArrow(partial(_attend, job), _RESULT, barrier=True)
            collecting = _Collecting(self.session, stage, LateNotice(num_workers))
            try:
                table = collecting.table(inbox, interrupts, task.stoppable)
            except Exception as error:
                translated = _translated(error, failures)
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

    def _seats(self, count: int) -> DataFrame:
        return (
            self.session.range(count).selectExpr("int(id) AS seat").repartitionById(count, "seat")
        )

    def _inbox(self, on_message: MessageHandler) -> Inbox:
        try:
            return Inbox(_spark.driver_host(self.session), on_message)
        except OSError:  # a host name that this machine can't listen on: no live progress then
            return Inbox("127.0.0.1", on_message)


class _Collecting:
    """Waits for Spark in a thread of its own, so that Ctrl-C can be handled in order."""

    def __init__(self, session: SparkSession, stage: DataFrame, notice: LateNotice) -> None:
        self._session = session
        self._stage = stage
        self._notice = notice
        self._tag = f"farandole-{secrets.token_hex(8)}"
        self._table: pa.Table | None = None
        self._error: BaseException | None = None
        self._thread = _spark.thread(session, self._collect)

    def _collect(self) -> None:
        _spark.add_tag(self._session, self._tag)
        try:
            self._table = self._stage.toArrow()
        except BaseException as error:
            self._error = error

    def table(self, inbox: Inbox, interrupts: Interrupts, stoppable: bool) -> pa.Table:
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(0.1)
            self._notice.look(inbox.connected)
            if inbox.error is not None:
                self._cancel()
                raise inbox.error
            if interrupts.count == 0:
                continue
            if not stoppable or interrupts.count > 1 or inbox.connected == 0:
                self._cancel()
                raise KeyboardInterrupt
            inbox.request_stop()
        if self._error is not None:
            raise self._error
        assert self._table is not None
        return self._table

    def _cancel(self) -> None:
        """Again and again, because only a job that has already started can be cancelled."""
        deadline = time.monotonic() + _CANCEL_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            _spark.cancel(self._session, self._tag)
            self._thread.join(1)


_BROKEN_TASK = re.compile(r"barrier task (?:Result|ShuffleMap)Task\(\d+, (\d+)\)")


def _translated(error: Exception, failures: list[Failure]) -> Exception:
    """Our worker's own exception, where Spark's wall of text contains one."""
    text = str(error)
    found = Failure.find(text)
    known = [*failures, found] if found else failures
    failure = first_cause(known) if known else None
    broken = _BROKEN_TASK.search(text)
    if (failure is None or failure.lost_peer) and broken and "exited unexpectedly" in text:
        why = "its Python process died without a word, most often killed for lack of memory"
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
        unpack_result(rank, b"".join(data for _, data in sorted(found)))
        for rank, found in parts.items()
    ]


def _attend(job: BarrierJob, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a barrier task."""
    import torch
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    torch.set_num_threads(max(1, context.cpus()))
    outbox = Outbox(context.partitionId(), job.inbox)
    try:
        payload = _work(job, context, batches, outbox)
    finally:
        outbox.close()
    for part, start in enumerate(range(0, len(payload), _CHUNK)):
        row = [[context.partitionId()], [part], [payload[start : start + _CHUNK]]]
        arrays = [pa.array(row[0], pa.int32()), pa.array(row[1], pa.int32()), pa.array(row[2])]
        yield pa.RecordBatch.from_arrays(arrays, ["rank", "part", "payload"])


def _work(
    job: BarrierJob, context: Any, batches: Iterator[pa.RecordBatch], outbox: Outbox
) -> bytes:
    from farandole.engines.output import output_to
    from farandole.engines.worker import WorkerFailure, perform

    rank, size = context.partitionId(), len(context.getTaskInfos())
    rows = batches if job.fed else _drained(batches)
    try:
        with _meeting(job, context, rank, size) as meeting, output_to(outbox):
            return perform(job.parcel, rank, size, rows, meeting, outbox, job.timeout)
    except WorkerFailure as error:
        failure = error.failure
    outbox.tell(failure)
    if failure.lost_peer:
        time.sleep(_ECHO_SECONDS)
    raise RuntimeError(f"{failure.summary} {failure.mark()}")


@contextmanager
def _meeting(job: BarrierJob, context: Any, rank: int, size: int) -> Iterator[Meeting]:
    """Agree on rank 0's store, in the background: meanwhile rows arrive."""
    from farandole.engines.barrier import BarrierMeeting
    from farandole.engines.rendezvous import (
        LOOPBACK,
        OneHost,
        announced,
        listen,
        read_announcement,
    )

    with ExitStack() as stack:
        if not job.one_host or sys.platform != "linux":
            yield stack.enter_context(BarrierMeeting(context, job.inbox.host, job.timeout))
        elif rank == 0:
            listener = stack.enter_context(listen(LOOPBACK))
            port = listener.getsockname()[1]
            stack.enter_context(announced(job.name, port))
            yield OneHost(rank, size, lambda: port, listener, job.timeout)
        else:
            find_port = partial(read_announcement, job.name, job.timeout)
            yield OneHost(rank, size, find_port, None, job.timeout)


def _drained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())
