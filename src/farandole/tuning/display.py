"""How a study is shown while it runs: a bar and a table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from farandole.progress import Lines, NotebookBar, in_notebook
from farandole.tuning.study_view import StudyView, StudyWatch, TrialRow, duration

if TYPE_CHECKING:
    from rich.console import Console, Group

    from farandole.tuning.search import Search

_LINE_SECONDS = 2.0
_MOST_RUNNING = 12
"""Rows of trials that run; the others are only counted."""
_ENDLESS = 1 << 40


class StudyDisplay:
    """Shows how far a search has come."""

    _SECONDS = 0.1
    """Between two views."""

    def __init__(self, show: bool, trials: int, shown: Shown | None = None) -> None:
        known = trials if trials < _ENDLESS else None
        self._lock = threading.Lock()
        self._watch = StudyWatch(known)
        self._search: Search | None = None
        self._next = 0.0
        self._shown = shown
        if show and shown is None:
            self._shown = _shown(known)

    def __call__(self, search: Search) -> None:
        """Something has changed. Trials wait for this: it is quick, and looks at few changes."""
        with self._lock:
            self._search = search
            if self._shown is not None and time.perf_counter() >= self._next:
                self._show(search)

    def close(self) -> None:
        """Show how it ended, and leave the terminal as it was."""
        with self._lock:
            if self._shown is None:
                return
            view = None if self._search is None else self._show(self._search)
            with suppress(OSError):
                if self._shown is not None:
                    self._shown.close(view)
            self._shown = None

    def _show(self, search: Search) -> StudyView:
        start = time.perf_counter()
        view = self._watch.view(search)
        try:
            if self._shown is not None:
                self._shown.show(view)
        except OSError:  # a terminal that was closed is no reason to end a study
            self._shown = None
        now = time.perf_counter()
        # A storage far away may need long to give all trials: a tenth of the time at most.
        self._next = now + max(self._SECONDS, 10 * (now - start))
        return view


class Shown(Protocol):
    """A place where a study is shown."""

    def show(self, view: StudyView) -> None:
        """Show another view."""

    def close(self, view: StudyView | None) -> None:
        """Show the last one, if there is one, and tidy up."""


class StudyLines:
    """A line for a log when trials have ended, not too often; and one at the end."""

    def __init__(self, trials: int | None, lines: Lines | None = None) -> None:
        self._of = "" if trials is None else f"/{trials}"
        self._lines = lines or Lines(_LINE_SECONDS)
        self._written = 0

    def show(self, view: StudyView) -> None:
        """A line, if one is due."""
        if view.ended > self._written and self._lines.due():
            self._write(view)

    def close(self, view: StudyView | None) -> None:
        """The last line."""
        if view is not None and view.ended > self._written:
            self._write(view)

    def _write(self, view: StudyView) -> None:
        self._written = view.ended
        left = view.time_left() if view.running else ""
        parts = [f"trial {view.ended}{self._of}", view.in_words(), left]
        self._lines.write("  ".join(part for part in parts if part))


class NotebookStudy:
    """One output of a notebook, updated in place."""

    def __init__(self, trials: int | None) -> None:
        self._bar = NotebookBar("trials", trials)

    def show(self, view: StudyView) -> None:
        """Move the bar."""
        left = view.time_left() if view.running else ""
        count = "" if self._bar.total else f"{view.ended} ended"
        note = "  ".join(part for part in (count, view.in_words(), left) if part)
        self._bar.update(completed=view.ended, note=note)

    def close(self, view: StudyView | None) -> None:
        """Show how it ended."""
        self._bar.close()


class StudyTable:
    """A live bar with a table under it, on a terminal; at the end, one line stays."""

    def __init__(self, trials: int | None, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._trials = trials
        self._start = time.perf_counter()
        self._view: StudyView | None = None
        self._console = console or Console(stderr=True)
        self._live = Live(self, console=self._console, refresh_per_second=5, transient=True)
        self._live.start()

    def show(self, view: StudyView) -> None:
        """What the live display draws next time."""
        self._view = view

    def close(self, view: StudyView | None) -> None:
        """Leave a line in place of the table."""
        self._live.stop()
        if view is not None:
            took = duration(time.perf_counter() - self._start)
            old = f" ({view.before} more before)" if view.before else ""
            text = f"{view.ended - view.before} trials in {took}{old}  {view.in_words()}"
            self._console.print(text, markup=False, highlight=False)

    def __rich__(self) -> Group:
        """Bar and table, as rich draws them."""
        from rich.console import Group
        from rich.text import Text

        view = self._view
        if view is None:
            return Group(self._bar(0, ""))
        words = Text(view.in_words(), no_wrap=True, overflow="ellipsis")
        return Group(self._bar(view.ended, view.time_left()), words, _table(view))

    def _bar(self, ended: int, left: str) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = ProgressBar(total=self._trials, completed=ended, width=40, pulse=self._trials is None)
        count = str(ended) if self._trials is None else f"{ended}/{self._trials}"
        grid = Table.grid(padding=(0, 2))
        grid.add_row("trials", bar, Text(count), Text(left, style="cyan"))
        return grid


def _table(view: StudyView) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trial", justify="right")
    table.add_column("arguments", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("step", justify="right")
    table.add_column(Text("  ".join(view.metrics)), no_wrap=True)

    def add(what: str, row: TrialRow, style: str) -> None:
        step = "" if row.step is None else str(row.step)
        cells = (what, str(row.number), row.arguments, step, row.value)
        table.add_row(*map(Text, cells), style=style)

    for row in view.best:
        add("best", row, "green")
    for row in view.running[:_MOST_RUNNING]:
        add("runs", row, "")
    hidden = len(view.running) - _MOST_RUNNING
    if hidden > 0:
        table.add_row("", "", Text(f"… and {hidden} more", style="dim"))
    return table


def _shown(trials: int | None) -> Shown:
    """What suits where we are."""
    if in_notebook():
        return NotebookStudy(trials)
    if sys.stderr.isatty():
        return StudyTable(trials)
    return StudyLines(trials)
