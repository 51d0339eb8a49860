"""How far predicting has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

_LINE_SECONDS = 5.0


class Lines:
    """A line every few seconds, for logs."""

    def __init__(self, total: int | None, write: Callable[[str], Any] | None = None) -> None:
        self._write = write or (lambda text: print(text, file=sys.stderr, flush=True))
        self._total = total
        self._start = self._written = time.perf_counter()

    def __call__(self, rows: int) -> None:
        """So many rows are done."""
        now = time.perf_counter()
        if now - self._written < _LINE_SECONDS:
            return
        self._written = now
        self._write(describe(rows, self._total, now - self._start))

    def close(self) -> None:
        """Nothing to tidy."""


class Bar:
    """A live bar on a terminal."""

    def __init__(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._total = total
        self._start = time.perf_counter()
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, note="")
        self._bar.start()

    def __call__(self, rows: int) -> None:
        """Move the bar."""
        note = describe(rows, self._total, time.perf_counter() - self._start)
        self._bar.update(self._task, completed=rows, note=note)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()


def describe(rows: int, total: int | None, seconds: float) -> str:
    """How far, how fast and how long it will take.

    >>> describe(5_000, 20_000, seconds=2.0)
    '5,000 of 20,000 rows  2,500 rows/s  6 s left'
    """
    rate = rows / max(seconds, 1e-9)
    far = f"{rows:,} rows" if total is None else f"{rows:,} of {total:,} rows"
    left = f"  {(total - rows) / rate:,.0f} s left" if total is not None and rows else ""
    return f"{far}  {rate:,.0f} rows/s{left}"


def display(show: bool, total: int | None) -> Bar | Lines | None:
    """The display that suits where we are."""
    if not show:
        return None
    return Bar(total) if sys.stderr.isatty() else Lines(total)
