"""How barrier tasks of several hosts find each other: Spark's own barrier passes the word on."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store

from farandole.engines.rendezvous import LOOPBACK, interface_of, listen, open_store
from farandole.errors import LaunchError


class BarrierMeeting:
    """Every task says who it is, and rank 0 where its store is. Use as a context manager.

    The barrier looks for news once a second, so it is asked in the background, while rows arrive.
    """

    def __init__(self, context: Any, driver: str, timeout: float) -> None:
        self._context = context
        self._rank = int(context.partitionId())
        self._timeout = timeout
        self._size = len(context.getTaskInfos())
        seen = context.getTaskInfos()[self._rank].address.rsplit(":", 1)[0]
        self._address = own_address(seen, driver)
        self._listener = listen(self._address) if self._rank == 0 else None
        self._port = self._listener.getsockname()[1] if self._listener else 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="farandole-meeting")

    def __enter__(self) -> BarrierMeeting:
        word = f"{network_stack()} {self._address} {self._port}"
        self._gathering: Future[list[str]] = self._pool.submit(self._context.allGather, word)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False)
        if self._listener is not None:
            self._listener.close()

    def open_store(self) -> Store:
        """The store of rank 0, at the address that it gave."""
        if self._listener is not None:
            host, port = self._address, self._port
        else:
            _, host, text = self._gathered()[0].split(" ")
            port = int(text)
        return open_store(self._rank, self._size, host, port, self._listener, self._timeout)

    def addresses(self) -> list[str]:
        """The address of every rank."""
        return addresses_of(self._gathered())

    def _gathered(self) -> list[str]:
        try:
            return self._gathering.result(self._timeout)
        except FutureTimeout:
            raise LaunchError(
                f"Spark's barrier did not open within {self._timeout:g} s: the Python of some "
                "task has not started. Look at the executors' logs, or allow more with timeout=."
            ) from None


def addresses_of(words: Sequence[str]) -> list[str]:
    """The address of every rank; loopback for all where they share one network stack.

    >>> addresses_of(["a 10.0.0.1 4000", "b 10.0.0.2 0"]), addresses_of(["a 10.0.0.1 4000"] * 2)
    (['10.0.0.1', '10.0.0.2'], ['127.0.0.1', '127.0.0.1'])
    """
    stacks, addresses, _ = zip(*(word.split(" ") for word in words), strict=True)
    return [LOOPBACK] * len(words) if len(set(stacks)) == 1 else list(addresses)


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
