"""How workers find each other: one store, opened by rank 0 on a port that the system chose."""

from __future__ import annotations

import gc
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

# Before any ring: its default arguments are the ring of the moment, which they keep for ever. DDP
# imports it in the middle of one, whose ports and threads a reused Spark worker would not lose.
import torch.distributed.nn.functional
from torch._C._distributed_c10d import Store, TCPStore

from farandole.errors import WorkerMissing

LOOPBACK = "127.0.0.1"


def listen(host: str) -> socket.socket:
    """A listening socket on a free port of one interface.

    Binding port 0 leaves no gap in which another process could take the port, and handing
    the bound socket to the store keeps it from listening on every interface.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(1024)
    return listener


@contextmanager
def published_port(name: str, port: int) -> Iterator[None]:
    """Tell workers of this host the store's port, under a name that only they know.

    An abstract socket needs no file and vanishes with the process. It takes microseconds, where
    Spark's own barrier looks for news once a second.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen(1024)

        def answer() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(port.to_bytes(4, "big"))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept
            thread.join(5)


def find_port(name: str, timeout: float) -> int:
    """The port that rank 0 published under `name` on this host."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(5)
                peer.connect(f"\0{name}")
                return int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkerMissing([0], timeout) from error
            time.sleep(0.005)


def open_store(
    rank: int, size: int, host: str, port: int, listener: socket.socket | None, timeout: float
) -> Store:
    """Connect to the store of rank 0, which serves it from `listener`."""
    options: dict[str, Any] = {"master_listen_fd": listener.detach()} if listener else {}
    opening: Future[Store] = Future()

    def connect() -> None:
        try:
            opening.set_result(
                TCPStore(
                    host,
                    port,
                    size,
                    is_master=listener is not None,
                    timeout=timedelta(seconds=timeout),
                    wait_for_workers=False,
                    **options,
                )
            )
        except BaseException as error:
            opening.set_exception(error)

    # In a thread: torch waits without end for a server that listens but doesn't answer yet.
    threading.Thread(target=connect, daemon=True).start()
    try:
        return opening.result(timeout)
    except (RuntimeError, FutureTimeout) as error:
        raise WorkerMissing([0], timeout) from error


class Rendezvous(Protocol):
    """How one worker finds the others."""

    def open_store(self) -> Store:
        """The store that rank 0 serves; rank 0 itself has it without waiting for anybody."""
        ...

    def addresses(self) -> Sequence[str]:
        """The address of every rank; loopback for all where they are on one host."""
        ...


class LoopbackRendezvous:
    """For workers that share one network stack for certain."""

    def __init__(
        self,
        rank: int,
        size: int,
        find_port: Callable[[], int],
        listener: socket.socket | None,
        timeout: float,
    ) -> None:
        self._rank = rank
        self._size = size
        self._find_port = find_port
        self._listener = listener
        self._timeout = timeout

    def open_store(self) -> Store:
        """The store of rank 0."""
        port = self._find_port()
        return open_store(self._rank, self._size, LOOPBACK, port, self._listener, self._timeout)

    def addresses(self) -> list[str]:
        """Loopback for all."""
        return [LOOPBACK] * self._size


def wait_for_all(store: Store, rank: int, size: int, timeout: float) -> None:
    """Say that this rank has come, and wait for the others, by name."""
    store.set(f"arrived/{rank}", "1")
    try:
        store.wait([f"arrived/{other}" for other in range(size)], timedelta(seconds=timeout))
    except RuntimeError as error:
        missing = [other for other in range(size) if not _has(store, f"arrived/{other}")]
        raise WorkerMissing(missing or [0], timeout) from error


@contextmanager
def process_group(
    store: Store, rank: int, addresses: Sequence[str], device: str, timeout: float
) -> Iterator[None]:
    """torch.distributed, initialised for the body of a `with`.

    When the body fails, the group is left as it is: destroying it could wait for a peer, and
    every engine ends the process of a worker that failed.
    """
    size = len(addresses)
    wait_for_all(store, rank, size, timeout)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    with _gloo_interface(rank, addresses):  # to the end: groups made later need it as well
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
        # A worker with little to do must not go while peers still connect to it.
        dist.all_reduce(torch.zeros(1))
        yield
        if dist.is_initialized():  # the user's own code may have destroyed it
            _destroy()


def _destroy() -> None:
    """End torch.distributed without its dead-lock.

    If the last holder of the group (a DDP module) dies while it holds the interpreter lock and a
    thread of gloo needs that lock to drop its last work, torch 2.13 waits for ever. So whatever
    can go goes first, and gloo's threads get the time and the lock to finish.
    """
    gc.collect()
    time.sleep(0.01)
    dist.destroy_process_group()


@contextmanager
def _gloo_interface(rank: int, addresses: Sequence[str]) -> Iterator[None]:
    """Keep gloo on loopback while all workers are on one host, else on their common network."""
    variable = "GLOO_SOCKET_IFNAME"
    if variable in os.environ:
        yield
        return
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    name = loopback if len(set(addresses)) == 1 else interface_of(addresses[rank])
    if name is None:  # gloo then looks up the name of this machine
        yield
        return
    os.environ[variable] = name
    try:
        yield
    finally:
        os.environ.pop(variable, None)


def interface_of(host: str) -> str | None:
    """The network interface that has the address of `host`; None where that can't be known."""
    if sys.platform != "linux":
        return None
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        wanted = socket.inet_aton(socket.gethostbyname(host))
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, get_address, struct.pack("256s", name.encode()))
                if answer[20:24] == wanted:
                    return name
    return None


def choose_device(local_rank: int, local_size: int) -> str:
    """A GPU of its own for each worker of this host, or the CPU for all of them."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_size:
        return f"cuda:{local_rank}"
    return "cpu"


def _has(store: Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:
        return False
