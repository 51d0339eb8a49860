"""Units: "25Gbit", "10us", "100MB" and "1..10000" as numbers, and numbers with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from farandole.errors import InputError
from farandole.planning.constants import MOST_WORKERS

_NUMBER = re.compile(r"\s*([+-]?\d[\d_,]*\.?\d*(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ/]*)\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0,
    "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip


def seconds(name: str, value: str | float) -> float:
    """A duration; a number that isn't text is in seconds.

    >>> seconds("latency", "10us"), seconds("mtbf", "1000h"), seconds("step_time", 0.12)
    (1e-05, 3600000.0, 0.12)
    """
    return _read(name, value, _SECONDS, 's, such as "10us", "120ms" or "1000h"')


def size(name: str, value: str | float) -> float:
    """An amount of bytes; a number that isn't text is that already.

    >>> size("memory", "16GB"), size("memory", "1GiB")
    (16000000000.0, 1073741824.0)
    """
    units = {f"{prefix}b": factor for prefix, factor in {**_PREFIXES, **_BINARY}.items()}
    return _read(name, value, units, 'B, such as "100MB" or "16GiB"')


def speed(name: str, value: str | float) -> float:
    """Bytes a second; a number that isn't text is that already. Links are sold in bits: "25Gbit".

    >>> speed("link", "25Gbit"), speed("link", "10 GB/s"), speed("link", "100Gbps")
    (3125000000.0, 10000000000.0, 12500000000.0)
    """
    units = {}
    for prefix, factor in _PREFIXES.items():
        bits = ("bit", "bit/s", "bps", "bits", "bits/s")
        units.update({f"{prefix}{unit}": factor / 8 for unit in bits})
        units[f"{prefix}b/s"] = factor
    return _read(name, value, units, 'bit, such as "25Gbit", or bytes as "3GB/s"')


def counts(name: str, value: str | int | Sequence[int]) -> tuple[int, ...]:
    """Numbers of workers: one, several, or a range that doubles from its first to its last.

    >>> counts("workers", "1..10"), counts("workers", "2,3"), counts("workers", [4])
    ((1, 2, 4, 8, 10), (2, 3), (4,))
    """
    wanted = f'{name} must be positive integers, such as 8, "1,2,4" or "1..10000"'
    try:
        found = _counts(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{wanted}. Received: {name}={value!r}") from error
    if not found or min(found) < 1:
        raise InputError(f"{wanted}. Received: {name}={value!r}")
    if max(found) > MOST_WORKERS:
        raise InputError(
            f"{name} must be at most {MOST_WORKERS:,}: a ring of more takes minutes to simulate. "
            f"Received: {name}={value!r}"
        )
    return tuple(sorted(set(found)))


def format_seconds(seconds: float) -> str:
    """Seconds as a person reads them.

    >>> format_seconds(0.0123), format_seconds(75)
    ('12.3 ms', '75 s')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e6:.3g} µs"


def format_bytes(value: float) -> str:
    """Bytes as a person reads them.

    >>> format_bytes(1.25e9), format_bytes(0)
    ('1.25 GB', '0 B')
    """
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def _counts(value: str | int | Sequence[int]) -> list[int]:
    if isinstance(value, bool):
        raise TypeError("a truth value counts nothing")
    if isinstance(value, int):
        return [value]
    if not isinstance(value, str):
        return [int(one) for one in value if int(one) == one or _refuse()]
    text = value.replace("_", "")
    if ".." not in text:
        return [int(one) for one in text.split(",")]
    first, last = (int(one) for one in text.split(".."))
    if first < 1 or last < first:
        return []
    doublings = range(int(math.log2(last / first)) + 1)
    return [*(first << number for number in doublings), last]


def _refuse() -> int:
    raise ValueError("not a whole number")


def _read(name: str, value: str | float, units: Mapping[str, float], wanted: str) -> float:
    message = f"{name} must be a positive number with a unit: {wanted}. Received: {name}={value!r}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(message)
    if not isinstance(value, str):
        return _positive(float(value), message)
    match = _NUMBER.fullmatch(value)
    if match is None or match[2].lower() not in units:
        raise InputError(message)
    number = float(match[1].replace(",", "").replace("_", ""))
    unit = units[match[2].lower()]
    # 10 / 1e6 is 1e-05, and 10 * 1e-06 isn't quite.
    return _positive(number * unit if unit >= 1 else number / round(1 / unit), message)


def _positive(number: float, message: str) -> float:
    if not (number > 0 and math.isfinite(number)):
        raise InputError(message)
    return number
