"""System resources: the memory and cores that processes may use on this machine, or container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_UNKNOWN = 8e9
_GROUPS = Path("/sys/fs/cgroup")


def available_memory(
    meminfo: Path = Path("/proc/meminfo"),
    groups: Path = _GROUPS,
    own: Path = Path("/proc/self/cgroup"),
) -> float:
    """Bytes that processes here may still take; where nobody knows, a few GB.

    That is what the kernel calls available, which counts the cache of files, and what the limits of
    containers leave of it.

    >>> available_memory() > 0
    True
    """
    return max(0.0, min([_available(meminfo), *_left(groups, own)]))


def usable_cores() -> int:
    """How many cores this process may run on, which can be fewer than the machine has.

    >>> usable_cores() > 0
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _available(meminfo: Path) -> float:
    for line in _text(meminfo).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return float(value.split()[0]) * 1024
    try:  # no Linux
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return _UNKNOWN


def _left(groups: Path, own: Path) -> Iterator[float]:
    """Of the limit of each control group around this process, in its second or first version."""
    for line in _text(own).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            names, top = ("memory.max", "memory.current", "inactive_file"), groups
        elif "memory" in kinds.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = groups / "memory"
        else:
            continue
        inner = top / path.strip("/")
        for folder in [inner, *(one for one in inner.parents if one.is_relative_to(top))]:
            limit, used = (_text(folder / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + _cached(folder, names[2])


def _cached(folder: Path, name: str) -> int:
    """Files that the kernel keeps in memory, and releases when a process needs it."""
    lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return next((int(pair[1]) for pair in lines if pair[0] == name), 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
