"""The worker's side of the Spark engine: one task, and how it finds the others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import torch

from farandole import _spark
from farandole.engines.addresses import addresses_of, network_stack, own_address
from farandole.engines.authenticated_listener import StrangerHandler, listen
from farandole.engines.driver_link import Address, DriverLink
from farandole.engines.encryption import Credentials
from farandole.engines.heartbeat import Heartbeat, HeartbeatAddress
from farandole.engines.pickled import Pickled
from farandole.engines.rendezvous import (
    LOOPBACK,
    LoopbackRendezvous,
    Rendezvous,
    find_port,
    open_store,
    published_port,
)
from farandole.engines.serialization import LinkedTask, PickledTask
from farandole.engines.spark_gang import GangAddress, GangMember
from farandole.engines.store import AuthenticatedStore
from farandole.engines.worker import WorkerContext, WorkerFailure, run_task
from farandole.errors import LaunchError

RESULT_COLUMNS = "rank int, part int, payload binary"
DELIVERED = -1
"""In the place of a part's number: the result has gone over the link."""
_MOST_THROUGH_SPARK = 1 << 20
"""Bytes of a result that go through Spark, which has all of them in its driver's JVM at once."""
_PART_BYTES = 64 << 20
_REACH_DRIVER = (
    "(The network, most often, is too large for Spark's query.) Let executors reach the driver "
    "there (spark.driver.host, firewalls)."
)
_CAUSE_SECONDS = 5.0
"""How long a worker that merely lost a peer holds back, so that Spark hears the peer first."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """All that the task of a worker is told."""

    size: int
    task: PickledTask | None
    """None: it is too large for Spark's query, and comes over the link."""
    driver: Address
    heartbeat: HeartbeatAddress
    run_name: str
    """New for every run: under it workers of one host find each other."""
    one_host: bool
    """Whether all workers share one network stack for certain: Spark's local mode."""
    timeout: float
    """Seconds in a collective."""
    join_timeout: float
    """Seconds until all have loaded their rows."""
    has_rows: bool
    """Whether the rows that arrive are the task's data, or only what makes Spark start it."""
    gang: GangAddress | None = None
    """Where tasks find each other if they have no barrier of Spark's."""


def run_spark_task(spec: TaskSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The body of a worker's task: gives the worker's result, as rows of bytes.

    A large one goes over the link instead, if the driver can be reached.
    """
    from pyspark import BarrierTaskContext, TaskContext

    context: Any = BarrierTaskContext.get() if spec.gang is None else TaskContext.get()
    rank = context.partitionId()
    member = _registered(spec, context)
    torch.set_num_threads(max(1, context.cpus()))
    link = DriverLink(rank, spec.driver)
    with Heartbeat(rank, spec.heartbeat):
        try:
            result = _run(spec, context, batches, link, member)
            delivered = result.nbytes > _MOST_THROUGH_SPARK and link.deliver(result)
        finally:
            link.close()
            if member is not None:
                member.close()
    if delivered:
        yield _row(rank, DELIVERED, b"")
        return
    payload = result.to_bytes()
    for part, start in enumerate(range(0, len(payload), _PART_BYTES)):
        yield _row(rank, part, payload[start : start + _PART_BYTES])


def _row(rank: int, part: int, payload: bytes) -> pa.RecordBatch:
    arrays = [pa.array([rank], pa.int32()), pa.array([part], pa.int32()), pa.array([payload])]
    return pa.RecordBatch.from_arrays(arrays, ["rank", "part", "payload"])


def _registered(spec: TaskSpec, context: Any) -> GangMember | None:
    """This task's place among the others; raises if its rank has been here before."""
    if spec.gang is None:
        return None
    rank, task = context.partitionId(), context.taskAttemptId()
    return GangMember(spec.gang, spec.driver.credentials, rank, task)


def _run(
    spec: TaskSpec,
    context: Any,
    batches: Iterator[pa.RecordBatch],
    link: DriverLink,
    member: GangMember | None,
) -> Pickled:
    rank = context.partitionId()
    rows = batches if spec.has_rows else _drained(batches)
    task = spec.task or LinkedTask(link, f"{spec.driver.host}:{spec.driver.port}", _REACH_DRIVER)
    try:
        with _rendezvous(spec, context, member) as rendezvous:
            worker = WorkerContext(
                rank=rank,
                size=spec.size,
                rendezvous=rendezvous,
                link=link,
                timeout=spec.timeout,
                join_timeout=spec.join_timeout,
                credentials=spec.driver.credentials,
                gpus=_spark.granted_gpus(context),
            )
            return run_task(task, rows, worker)
    except WorkerFailure as error:
        failure = error.failure
    link.tell(failure)
    if failure.lost_peer:
        time.sleep(_CAUSE_SECONDS)
    # Spark shows this text in logs and pages: it is for people, if the driver has the rest already.
    _spark.hide_traceback()
    rest = "" if link.is_received() else f" {failure.to_text(spec.driver.secret)}"
    raise RuntimeError(f"rank {rank}: {failure.summary}{rest}")


@contextmanager
def _rendezvous(spec: TaskSpec, context: Any, member: GangMember | None) -> Iterator[Rendezvous]:
    """Agree on rank 0's store, in the background: meanwhile rows arrive."""
    rank, wait = context.partitionId(), spec.join_timeout
    with ExitStack() as stack:
        if member is not None:
            address = own_address(None, spec.driver.host)
            yield stack.enter_context(GatheredRendezvous(member.all_gather, rank, address, wait))
        elif not spec.one_host or sys.platform != "linux":
            seen = context.getTaskInfos()[rank].address.rsplit(":", 1)[0]
            address = own_address(seen, spec.driver.host)
            yield stack.enter_context(GatheredRendezvous(context.allGather, rank, address, wait))
        elif rank == 0:
            listener = stack.enter_context(listen(LOOPBACK))
            port = listener.getsockname()[1]
            stack.enter_context(published_port(spec.run_name, port))
            yield LoopbackRendezvous(spec.size, lambda: port, listener, wait)
        else:
            find = partial(find_port, spec.run_name, wait)
            yield LoopbackRendezvous(spec.size, find, None, wait)


def _drained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


class GatheredRendezvous:
    """Every task says where it is, and rank 0 where its store is. Use as a context manager.

    They tell each other through `all_gather`: Spark's barrier, which answers once a second, or the
    driver. It is asked in the background, while rows arrive.
    """

    def __init__(
        self, all_gather: Callable[[str], list[str]], rank: int, address: str, timeout: float
    ) -> None:
        self._all_gather = all_gather
        self._address = address
        self._timeout = timeout
        self._listener = listen(address) if rank == 0 else None
        self._port = self._listener.getsockname()[1] if self._listener else 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="farandole-rendezvous")

    def __enter__(self) -> GatheredRendezvous:
        message = f"{network_stack()} {self._address} {self._port}"
        self._gathering: Future[list[str]] = self._pool.submit(self._all_gather, message)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False)
        if self._listener is not None:
            self._listener.close()

    def open_store(
        self, credentials: Credentials, on_stranger: StrangerHandler
    ) -> AuthenticatedStore:
        """The store of rank 0, at the address that it gave."""
        if self._listener is not None:
            host, port = self._address, self._port
        else:
            _, host, text = self._gathered()[0].split(" ")
            port = int(text)
        return open_store((host, port), self._listener, credentials, self._timeout, on_stranger)

    def addresses(self) -> list[str]:
        """The address of every rank."""
        return addresses_of(self._gathered())

    def _gathered(self) -> list[str]:
        try:
            return self._gathering.result(self._timeout)
        except FutureTimeout:
            raise LaunchError(
                f"Not all tasks were there within {self._timeout:g} s: the Python of some has not "
                "started. Look at the executors' logs."
            ) from None
