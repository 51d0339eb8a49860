"""The worker's side of the Spark engine: one barrier task, and how it finds the others."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from farandole.engines.authenticated_listener import StrangerHandler, listen
from farandole.engines.driver_link import Address, DriverLink
from farandole.engines.encryption import Credentials
from farandole.engines.heartbeat import Heartbeat, HeartbeatAddress
from farandole.engines.rendezvous import (
    LOOPBACK,
    LoopbackRendezvous,
    Rendezvous,
    find_port,
    interface_of,
    open_store,
    published_port,
)
from farandole.engines.serialization import PickledTask
from farandole.engines.store import AuthenticatedStore
from farandole.engines.worker import WorkerContext, WorkerFailure, run_task
from farandole.errors import LaunchError

RESULT_COLUMNS = "rank int, part int, payload binary"
_PART_BYTES = 64 << 20
_CAUSE_SECONDS = 5.0
"""How long a worker that merely lost a peer holds back, so that Spark hears the peer first."""


@dataclass(frozen=True, kw_only=True)
class BarrierSpec:
    """All that a barrier task is told."""

    task: PickledTask
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


def run_barrier_task(
    spec: BarrierSpec, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of a barrier task: gives the worker's result, as rows of bytes."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    torch.set_num_threads(max(1, context.cpus()))
    link = DriverLink(context.partitionId(), spec.driver)
    with Heartbeat(context.partitionId(), spec.heartbeat):
        try:
            payload = _run(spec, context, batches, link)
        finally:
            link.close()
    for part, start in enumerate(range(0, len(payload), _PART_BYTES)):
        row = [[context.partitionId()], [part], [payload[start : start + _PART_BYTES]]]
        arrays = [pa.array(row[0], pa.int32()), pa.array(row[1], pa.int32()), pa.array(row[2])]
        yield pa.RecordBatch.from_arrays(arrays, ["rank", "part", "payload"])


def _run(
    spec: BarrierSpec, context: Any, batches: Iterator[pa.RecordBatch], link: DriverLink
) -> bytes:
    rank, size = context.partitionId(), len(context.getTaskInfos())
    rows = batches if spec.has_rows else _drained(batches)
    try:
        with _rendezvous(spec, context, rank, size) as rendezvous:
            worker = WorkerContext(
                rank=rank,
                size=size,
                rendezvous=rendezvous,
                link=link,
                timeout=spec.timeout,
                join_timeout=spec.join_timeout,
                credentials=spec.driver.credentials,
            )
            return run_task(spec.task, rows, worker)
    except WorkerFailure as error:
        failure = error.failure
    link.tell(failure)
    if failure.lost_peer:
        time.sleep(_CAUSE_SECONDS)
    # Spark shows this text in logs and pages: it is for people, if the driver has the rest already.
    rest = "" if link.is_received() else f" {failure.to_text(spec.driver.secret)}"
    raise RuntimeError(f"rank {rank}: {failure.summary}{rest}")


@contextmanager
def _rendezvous(spec: BarrierSpec, context: Any, rank: int, size: int) -> Iterator[Rendezvous]:
    """Agree on rank 0's store, in the background: meanwhile rows arrive."""
    with ExitStack() as stack:
        if not spec.one_host or sys.platform != "linux":
            host, wait = spec.driver.host, spec.join_timeout
            yield stack.enter_context(BarrierRendezvous(context, host, wait))
        elif rank == 0:
            listener = stack.enter_context(listen(LOOPBACK))
            port = listener.getsockname()[1]
            stack.enter_context(published_port(spec.run_name, port))
            yield LoopbackRendezvous(size, lambda: port, listener, spec.join_timeout)
        else:
            find = partial(find_port, spec.run_name, spec.join_timeout)
            yield LoopbackRendezvous(size, find, None, spec.join_timeout)


def _drained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


class BarrierRendezvous:
    """Every task says where it is, and rank 0 where its store is. Use as a context manager.

    Spark's barrier answers once a second, so it is asked in the background, while rows arrive.
    """

    def __init__(self, context: Any, driver: str, timeout: float) -> None:
        self._context = context
        self._rank = int(context.partitionId())
        self._timeout = timeout
        seen = context.getTaskInfos()[self._rank].address.rsplit(":", 1)[0]
        self._address = own_address(seen, driver)
        self._listener = listen(self._address) if self._rank == 0 else None
        self._port = self._listener.getsockname()[1] if self._listener else 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="farandole-rendezvous")

    def __enter__(self) -> BarrierRendezvous:
        message = f"{network_stack()} {self._address} {self._port}"
        self._gathering: Future[list[str]] = self._pool.submit(self._context.allGather, message)
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
                f"Spark's barrier did not open within {self._timeout:g} s: the Python of some "
                "task has not started. Look at the executors' logs."
            ) from None


def addresses_of(messages: Sequence[str]) -> list[str]:
    """The address of every rank; loopback for all where they share one network stack.

    >>> addresses_of(["a 10.0.0.1 4000", "b 10.0.0.2 0"]), addresses_of(["a 10.0.0.1 4000"] * 2)
    (['10.0.0.1', '10.0.0.2'], ['127.0.0.1', '127.0.0.1'])
    """
    stacks, addresses, _ = zip(*(each.split(" ") for each in messages), strict=True)
    return [LOOPBACK] * len(messages) if len(set(stacks)) == 1 else list(addresses)


def network_stack() -> str:
    """A name for the network stack of this process: what shares it shares loopback."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # other systems than Linux have no namespaces
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        parts = [boot, str(os.stat("/proc/self/ns/net").st_ino)]
    return "/".join(parts).replace(" ", "-")


def own_address(seen: str, driver: str) -> str:
    """The address under which peers can reach this host.

    It is the one that the driver sees, if an interface of this host has it. Behind a translating
    router none has: then it is that of the interface which leads to the driver.
    """
    if interface_of(seen) is not None:
        return seen
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((driver, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return seen
