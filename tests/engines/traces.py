"""What a driver may leave behind: processes, ports, threads, files."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def listening(process: psutil.Process | None = None) -> list[str]:
    """Give the addresses that a process listens on, as host:port."""
    connections = (process or psutil.Process()).net_connections("inet")
    return sorted(
        f"{c.laddr.ip}:{c.laddr.port}" for c in connections if c.status == psutil.CONN_LISTEN
    )


def hosts(addresses: list[str]) -> set[str]:
    return {address.rpartition(":")[0] for address in addresses}


def workers() -> list[int]:
    """Give the processes below this one that are neither Spark's own (its JVM and what that keeps)
    nor the fork server, which stays.
    """
    found = []
    for process in psutil.Process().children():
        try:
            if "serve_local" in "".join(process.cmdline()):
                found += [child.pid for child in process.children()]
            elif "java" not in process.name():
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def traces() -> dict[str, Any]:
    """Give what can be seen of this process now."""
    shared = Path("/dev/shm")
    names = os.listdir(tempfile.gettempdir()) + (os.listdir(shared) if shared.is_dir() else [])
    return {
        "threads": sorted(
            t.name for t in threading.enumerate() if t is not threading.main_thread()
        ),
        "listening": listening(),
        "workers": workers(),
        "files": sorted(name for name in names if re.search("farandole|torch(?!inductor)", name)),
    }


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


def square(number: int) -> int:
    """A function of a module that only the folder of the script has (see driver_script.py)."""
    return number * number
