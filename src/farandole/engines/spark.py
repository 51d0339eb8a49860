"""Workers as the tasks of one Spark barrier stage: classic Spark and Spark Connect alike."""

from __future__ import annotations

import json
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from farandole import _spark
from farandole.engines.base import MessageHandler, Task
from farandole.engines.channel import Address, Inbox, Outbox
from farandole.engines.failure import Failure
from farandole.engines.interrupt import Interrupts
from farandole.errors import LaunchError, NotEnoughSlots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHUNK = 64 << 20
_RESULT = "rank int, part int, payload binary"
_ECHO_SECONDS = 5.0
"""How long a worker that merely lost a peer holds back, so that Spark hears the peer first."""


@dataclass(frozen=True)
class BarrierJob:
    """All that a barrier task is told."""

    task: Task
    inbox: Address
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

    def slots(self) -> int:
        """How many tasks Spark can run at the same time."""
        return _spark.slots(self.session)

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
        available = self.slots()
        if num_workers > available:
            raise NotEnoughSlots(num_workers, available)
        frame = rows if rows is not None else self._seats(num_workers)
        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            inbox = stack.enter_context(self._inbox(on_message))
            job = BarrierJob(task, inbox.address, timeout, rows is not None)
            stage = frame.mapInArrow(partial(_attend, job), _RESULT, barrier=True)
            collecting = _Collecting(self.session, stage)
            return collecting.results(num_workers, inbox, interrupts, task.stoppable)

    def _seats(self, count: int) -> DataFrame:
        return self.session.range(count).repartitionById(count, "id")

    def _inbox(self, on_message: MessageHandler) -> Inbox:
        try:
            return Inbox(_spark.driver_host(self.session), on_message)
        except OSError:  # a host name that this machine can't listen on: no live progress then
            return Inbox("127.0.0.1", on_message)


class _Collecting(threading.Thread):
    """Waits for Spark in a thread of its own, so that Ctrl-C can be handled in order."""

    def __init__(self, session: SparkSession, stage: DataFrame) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._stage = stage
        self._tag = f"farandole-{uuid.uuid4().hex}"
        self._table: pa.Table | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        self._session.addTag(self._tag)
        try:
            self._table = self._stage.toArrow()
        except BaseException as error:
            self._error = error

    def results(
        self, size: int, inbox: Inbox, interrupts: Interrupts, stoppable: bool
    ) -> list[Any]:
        self.start()
        while self.is_alive():
            self.join(0.1)
            if interrupts.count == 0:
                continue
            if not stoppable or interrupts.count > 1 or inbox.connected == 0:
                self._session.interruptTag(self._tag)
                self.join(20)
                raise KeyboardInterrupt
            inbox.request_stop()
        if self._error is not None:
            raise _translated(self._error)
        assert self._table is not None
        return _assembled(self._table, size)


def _translated(error: BaseException) -> BaseException:
    """Our worker's own exception, where Spark's wall of text contains one."""
    text = str(error)
    failure = Failure.find(text)
    if failure is not None:
        translated = failure.to_error()
        translated.__suppress_context__ = True
        return translated
    if "No module named 'farandole'" in text:
        return LaunchError(
            "The Python of Spark's workers has no farandole. Install it there, or point "
            "PYSPARK_PYTHON at an environment that has it before the session starts."
        )
    return error


def _assembled(table: pa.Table, size: int) -> list[Any]:
    parts: dict[int, list[tuple[int, bytes]]] = {rank: [] for rank in range(size)}
    for rank, part, payload in zip(*(column.to_pylist() for column in table.columns), strict=True):
        parts[rank].append((part, payload))
    missing = [rank for rank, found in parts.items() if not found]
    if missing:
        raise LaunchError(f"Spark returned no result for rank {missing[0]} of {size}.")
    return [pickle.loads(b"".join(data for _, data in sorted(parts[r]))) for r in range(size)]


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
    from farandole.engines.rendezvous import LOOPBACK, listen, open_store
    from farandole.engines.worker import WorkerFailure, output_to, perform

    rank = context.partitionId()
    hosts = [info.address.rsplit(":", 1)[0] for info in context.getTaskInfos()]
    if len(set(hosts)) == 1:
        hosts = [LOOPBACK] * len(hosts)
    listener = listen(hosts[0]) if rank == 0 else None
    # All tasks of a barrier stage start together, so this exchange is quick; it comes before
    # the data, while every later wait has a limit and can name who is missing.
    ports = context.allGather(json.dumps(listener.getsockname()[1] if listener else None))
    try:
        with output_to(outbox):
            result = perform(
                job.task,
                rank,
                hosts,
                batches if job.fed else _drained(batches),
                partial(
                    open_store, rank, len(hosts), hosts[0], json.loads(ports[0]), listener, job.timeout
                ),
                outbox,
                job.timeout,
            )
            return bytes(cloudpickle.dumps(result))
    except WorkerFailure as error:
        failure = error.failure
    finally:
        if listener is not None:
            listener.close()
    if failure.lost_peer:
        time.sleep(_ECHO_SECONDS)
    raise RuntimeError(f"{failure.summary} {failure.mark()}")


def _drained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())
