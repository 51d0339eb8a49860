"""The memory of this process, as Linux counts it, in megabytes."""

from __future__ import annotations

from pathlib import Path


def peak() -> float:
    """The most this process has had in memory since `forget_peak`."""
    return _status("VmHWM")


def resident() -> float:
    """What this process has in memory now."""
    return _status("VmRSS")


def forget_peak() -> None:
    """Let the peak be what is in memory now."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1e3
    raise OSError(f"/proc/self/status has no {name}")
