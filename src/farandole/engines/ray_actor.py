"""The worker's side of the Ray engine: an actor that runs one task."""

from __future__ import annotations

import faulthandler
import importlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa

from farandole.engines.addresses import addresses_of, network_stack, own_address
from farandole.engines.authenticated_listener import StrangerHandler, listen
from farandole.engines.driver_link import Address, DriverLink, print_notice
from farandole.engines.encryption import Credentials
from farandole.engines.failure import Failure
from farandole.engines.heartbeat import Heartbeat, HeartbeatAddress
from farandole.engines.late_rows import OF_RAY, OF_SPARK, with_notice
from farandole.engines.rendezvous import open_store
from farandole.engines.row_exchange import RowExchange
from farandole.engines.serialization import LinkedTask, WorkerResult
from farandole.engines.store import AuthenticatedStore
from farandole.world import LONGEST_WAIT

_REACH_DRIVER = (
    "Let the nodes of the cluster reach the machine of this process: run it on one of them "
    "(`ray job submit`), and open its ports."
)


@dataclass(frozen=True)
class Place:
    """Where a worker is."""

    stack: str
    """The name of its network stack: what shares it shares loopback."""
    address: str
    node: str
    pid: int
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"pid {self.pid} on node {self.address}"


class WorkerRows(Protocol):
    """What workers read by themselves; it goes to each of them."""

    @property
    def router(self) -> Callable[[int, pa.RecordBatch], Sequence[pa.RecordBatch]] | None:
        """Gives the part of each of so many workers; None, if a worker reads what is its own."""

    def batches(self, rank: int, size: int) -> Iterator[pa.RecordBatch]:
        """What that worker reads."""


@dataclass(frozen=True, kw_only=True)
class ActorSpec:
    """All that a worker is told."""

    rank: int
    addresses: tuple[str, ...]
    """Of all ranks."""
    store_port: int
    row_ports: tuple[int, ...]
    """Where each rank takes rows of others; none, if none are exchanged."""
    driver: Address
    heartbeat: HeartbeatAddress
    timeout: float
    join_timeout: float
    threads: int

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self.addresses)


class WorkerActor:
    """One worker: the engine makes an actor of it, asks where it is, and runs it once."""

    def __init__(self) -> None:
        self._store: socket.socket | None = None
        self._rows: socket.socket | None = None

    def place(self, driver: str) -> Place:
        """Where this actor is; loads what a worker needs, which may take seconds."""
        import ray

        importlib.import_module("farandole.engines.worker")
        context = ray.get_runtime_context()
        gpus = tuple(str(each) for each in ray.get_gpu_ids())
        address = own_address(ray.util.get_node_ip_address(), driver)
        return Place(network_stack(), address, context.get_node_id(), os.getpid(), gpus)

    def open_store_port(self, address: str) -> int:
        """Listen for the others; only rank 0 is asked to."""
        self._store = listen(address)
        return int(self._store.getsockname()[1])

    def open_row_port(self, address: str) -> int:
        """Listen for rows that others have read, or that Spark's tasks send."""
        self._rows = listen(address)
        return int(self._rows.getsockname()[1])

    def run(self, spec: ActorSpec, gpus: Sequence[str], rows: WorkerRows | None) -> Failure | None:
        """Do the task; gives a failure that the driver hasn't heard of over the link.

        `rows` is None, or says what this worker reads and whose it is.
        """
        import torch

        faulthandler.disable()  # Ray's: the heartbeat's own tells the driver where a crash was
        torch.set_num_threads(spec.threads)
        link = DriverLink(spec.rank, spec.driver, timeout=spec.join_timeout)
        with Heartbeat(spec.rank, spec.heartbeat, ends_with_driver=True):
            message = self._message(spec, gpus, rows, link)
            link.tell(message)
            is_known = link.is_received(LONGEST_WAIT)
            link.close()
        return message if isinstance(message, Failure) and not is_known else None

    def _message(
        self, spec: ActorSpec, gpus: Sequence[str], rows: WorkerRows | None, link: DriverLink
    ) -> WorkerResult | Failure:
        from farandole.engines.worker import WorkerContext, WorkerFailure, run_task

        context = WorkerContext(
            rank=spec.rank,
            size=spec.size,
            rendezvous=KnownRendezvous(spec, self._store),
            link=link,
            timeout=spec.timeout,
            join_timeout=spec.join_timeout,
            credentials=spec.driver.credentials,
            # Ray shows a worker its own GPUs only, so that to torch the first is number 0.
            gpus=("0",) if gpus else (),
            gpu_name=gpus[0] if gpus else None,
            cluster="Ray",
        )
        task = LinkedTask(link, f"{spec.driver.host}:{spec.driver.port}", _REACH_DRIVER)
        try:
            return WorkerResult(run_task(task, self._batches(spec, rows), context))
        except WorkerFailure as error:
            return error.failure

    def _batches(self, spec: ActorSpec, rows: WorkerRows | None) -> Iterator[pa.RecordBatch]:
        """The rows of this worker; nothing is read before the first is asked for."""
        if rows is not None and rows.router is None:
            yield from rows.batches(spec.rank, spec.size)
        elif rows is not None:
            yield from with_notice(self._routed(spec, rows), OF_RAY, print_notice)
        elif self._rows is not None:
            from farandole.engines.spark_rows import ReceivedRows

            credentials = spec.driver.credentials
            received = ReceivedRows(spec.rank, self._rows, credentials, print_notice)
            yield from with_notice(received.batches(), OF_SPARK, print_notice)

    def _routed(self, spec: ActorSpec, rows: WorkerRows) -> Iterator[pa.RecordBatch]:
        """What belongs to this worker, of what all of them read."""
        read = rows.batches(spec.rank, spec.size)
        assert rows.router is not None
        route = partial(rows.router, spec.size)
        if self._rows is None:  # there is nobody else
            for batch in read:
                yield from route(batch)
        else:
            places = list(zip(spec.addresses, spec.row_ports, strict=True))
            credentials = spec.driver.credentials
            exchange = RowExchange(spec.rank, places, self._rows, credentials, print_notice)
            yield from exchange.batches(read, route)


class KnownRendezvous:
    """For workers that the driver has told where all of them are."""

    def __init__(self, spec: ActorSpec, listener: socket.socket | None) -> None:
        self._spec = spec
        self._listener = listener

    def open_store(
        self, credentials: Credentials, on_stranger: StrangerHandler
    ) -> AuthenticatedStore:
        """The store of rank 0."""
        place = self._spec.addresses[0], self._spec.store_port
        return open_store(place, self._listener, credentials, self._spec.join_timeout, on_stranger)

    def addresses(self) -> Sequence[str]:
        """The address of every rank."""
        return self._spec.addresses


def reachable_addresses(places: Sequence[Place]) -> tuple[str, ...]:
    """The address of every rank; loopback for all where they share one network stack."""
    return tuple(addresses_of([f"{place.stack} {place.address} 0" for place in places]))
