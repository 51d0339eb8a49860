"""Progress for people: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

_ROW_LINE_SECONDS = 5.0


class Bar:
    """A live bar on a terminal: what is being done, how far, a note, and the time left.

    Args:
        description: what is being done.
        total: how much there is to do; None: unknown.
        stderr: whether to show it there and remove it at the end; else on rich's own console.
    """

    def __init__(
        self, description: str = "", total: int | None = None, *, stderr: bool = False
    ) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True) if stderr else None,
            transient=stderr,
        )
        self._task = self._bar.add_task(description, total=total, note="")
        self._bar.start()

    @property
    def completed(self) -> float:
        """How much is done."""
        return self._bar.tasks[0].completed

    @property
    def total(self) -> float | None:
        """How much there is to do, if that is known."""
        return self._bar.tasks[0].total

    def update(self, **fields: Any) -> None:
        """Show another `completed`, `total`, `description` or `note`."""
        self._bar.update(self._task, **fields)

    def reset(self, total: int, description: str, completed: int = 0) -> None:
        """Begin something else, of which some is done: the time left is that of the rest."""
        self._bar.reset(
            self._task, total=total, completed=completed, description=description, note=""
        )

    def write(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()


class NotebookBar:
    """The same in a notebook: one output that is updated in place, so that Spark's bar stays apart.

    Args:
        description: what is being done.
        total: how much there is to do; None: unknown.
    """

    _WIDTH = 30
    _SECONDS = 0.1

    def __init__(self, description: str = "", total: int | None = None) -> None:
        from IPython.display import display  # type: ignore[import-not-found]

        self._lines: list[str] = []
        self._fields: dict[str, Any] = {"description": description, "note": ""}
        self.completed, self.total = 0.0, None if total is None else float(total)
        self._shown = time.perf_counter()
        self._handle = display(self._data(), raw=True, display_id=True)

    def update(self, **fields: Any) -> None:
        """Show another `completed`, `total`, `description` or `note`."""
        self.completed = fields.pop("completed", self.completed)
        self.total = fields.pop("total", self.total)
        self._fields.update(fields)
        if time.perf_counter() - self._shown >= self._SECONDS:  # a kernel needs time for each
            self._show()

    def reset(self, total: int, description: str, completed: int = 0) -> None:
        """Begin something else, of which some is done."""
        self.completed, self.total = float(completed), float(total)
        self._fields = {"description": description, "note": ""}
        self._show()

    def write(self, text: str) -> None:
        """A line above the bar."""
        self._lines.append(text)
        self._show()

    def close(self) -> None:
        """Show how it ended."""
        self._show()

    def _show(self) -> None:
        self._shown = time.perf_counter()
        self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        description, note = self._fields["description"], self._fields["note"]
        bar = ""
        if self.total:
            done = round(self._WIDTH * min(self.completed / self.total, 1.0))
            bar = (
                f"{'━' * done}{' ' * (self._WIDTH - done)} {self.completed:,.0f}/{self.total:,.0f}"
            )
        status = "  ".join(part for part in (description, bar, note) if part)
        return {"text/plain": "\n".join([*self._lines, status])}


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, whose outputs can be updated in place."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class Lines:
    """Lines for a log, with some seconds between those that may be left out.

    >>> lines = Lines(every=0.0, write=print)
    >>> if lines.due():
    ...     lines.write("half of it")
    half of it
    """

    def __init__(self, every: float, write: Callable[[str], Any] | None = None) -> None:
        self.write = write or (lambda text: print(text, file=sys.stderr, flush=True))
        self._every = every
        self._written = time.perf_counter()

    def due(self, always: bool = False) -> bool:
        """Whether it is time for another line."""
        now = time.perf_counter()
        due = always or now - self._written >= self._every
        self._written = now if due else self._written
        return due

    def close(self) -> None:
        """Nothing to tidy."""


class RowProgress:
    """How far a stream of rows has come."""

    def __init__(self, total: int | None, display: Bar | NotebookBar | Lines) -> None:
        self._total = total
        self._display = display
        self._start = time.perf_counter()

    def __call__(self, rows: int) -> None:
        """So many rows are done."""
        seconds = time.perf_counter() - self._start
        if isinstance(self._display, Bar | NotebookBar):
            note = f"{rows / max(seconds, 1e-9):,.0f} rows/s"
            self._display.update(completed=rows, note=note)
        elif self._display.due():
            self._display.write(describe_rows(rows, self._total, seconds))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._display.close()


def describe_rows(rows: int, total: int | None, seconds: float) -> str:
    """How far, how fast and how long it will take.

    >>> describe_rows(5_000, 20_000, seconds=2.0)
    '5,000 of 20,000 rows  2,500 rows/s  6 s left'
    """
    rate = rows / max(seconds, 1e-9)
    far = f"{rows:,} rows" if total is None else f"{rows:,} of {total:,} rows"
    left = f"  {(total - rows) / rate:,.0f} s left" if total is not None and rows else ""
    return f"{far}  {rate:,.0f} rows/s{left}"


def row_progress(total: int | None) -> RowProgress:
    """The display of rows that suits where we are."""
    if in_notebook():
        return RowProgress(total, NotebookBar("rows", total))
    if sys.stderr.isatty():
        return RowProgress(total, Bar("rows", total, stderr=True))
    return RowProgress(total, Lines(_ROW_LINE_SECONDS))
