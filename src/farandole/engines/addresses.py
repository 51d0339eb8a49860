"""Under which addresses the workers of a run reach each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from farandole.engines.rendezvous import LOOPBACK, interface_of


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


def own_address(seen: str | None, driver: str) -> str:
    """The address under which peers can reach this host.

    It is the one that the driver sees, if an interface of this host has it. Behind a translating
    router none has, and of ordinary tasks Spark doesn't tell it: then it is that of the interface
    which leads to the driver.
    """
    if seen is not None and interface_of(seen) is not None:
        return seen
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((driver, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return seen or LOOPBACK
