"""How long batches take, and how many rows of them keep answers quick."""

from __future__ import annotations

from dataclasses import dataclass

MOST_INLINE = 0.002
"""Seconds that a batch may take where requests are read: a thread of its own costs more."""
MOST = 0.004
"""Seconds that a batch may take in a thread: who comes just after its start waits for two."""
SLACK = 1.25
"""How much longer a row may take in a small batch than in a full one, for the sake of that."""


@dataclass(frozen=True)
class Times:
    """Seconds of work: for one row, and for a full batch."""

    one: float
    full: float

    def __str__(self) -> str:
        return f"{self.one * 1e3:.2f} ms a row, {self.full * 1e3:.2f} ms a full batch"


@dataclass(frozen=True)
class Pace:
    """How batches go through a network."""

    rows: int
    """So many at once."""
    inline: bool
    """Whether where requests are read, without a thread."""


def pace_of(times: Times, max_batch: int) -> Pace:
    """Small batches where large ones would keep others waiting, unless that makes rows expensive.

    A batch is taken to need so long to begin with, and so long for each row.

    >>> pace_of(Times(0.0001, 0.0005), 64)  # a small network
    Pace(rows=64, inline=True)
    >>> pace_of(Times(0.0006, 0.016), 64)  # convolutions: few rows at a time are as good as many
    Pace(rows=6, inline=True)
    >>> pace_of(Times(0.02, 0.1), 64)  # it is slow anyway: then many rows at least
    Pace(rows=27, inline=False)
    """
    each = max(times.full - times.one, 0.0) / max(max_batch - 1, 1)
    first = max(times.one - each, 0.0)

    def within(seconds: float) -> int:
        if first + each * max_batch <= seconds:
            return max_batch
        return max(1, int((seconds - first) / each)) if each else 1

    allowed = SLACK * times.full / max_batch  # of a row
    worth = first / (allowed - each) if allowed > each else max_batch
    least = min(max_batch, max(1, round(worth)))
    if first + each * least <= MOST_INLINE:
        return Pace(max(least, within(MOST_INLINE)), True)
    return Pace(max(least, within(MOST)), False)
