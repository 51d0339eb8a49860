"""Progress for people: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from farandole.progress import Bar, Lines, NotebookBar, in_notebook
from farandole.training import events

_LINE_SECONDS = 0.5
_FIRST = "gathering workers and data"
Observer = Callable[[events.Event], None]


def describe_row(row: Mapping[str, float]) -> str:
    """One row of the history in a line.

    >>> describe_row({"epoch": 1, "train_loss": 0.5, "seconds": 2.0, "rows_per_second": 100.0})
    'train_loss 0.5000'
    """
    quiet = ("epoch", "seconds", "rows_per_second", "learning_rate", "evaluations")
    return "  ".join(f"{name} {value:.4f}" for name, value in row.items() if name not in quiet)


class PlainProgress:
    """A line an epoch, for logs."""

    def __init__(self, write: Callable[[str], Any] | None = None) -> None:
        self._lines = Lines(_LINE_SECONDS, write)
        self._epochs = 0
        self._steps = 1
        self._start = time.perf_counter()
        self._before = 0.0
        """Epochs that an earlier attempt had finished."""

    def __call__(self, event: events.Event) -> None:
        """Write what is worth a line."""
        write = self._lines.write
        match event:
            case events.FeaturesCached(rows=0):
                write(f"frozen layers see each row once: {event.of:,} of the first worker")
            case events.StragglerFound() | events.WarningIssued():
                write(str(event))
            case events.StrategyChosen():
                write(f"strategy: {event.strategy}, because {event.reason}")
            case events.TrainingStarted():
                self._epochs, self._steps = event.epochs, max(event.steps_per_epoch, 1)
                self._start, self._before = time.perf_counter(), 0.0
                write(describe_start(event))
            # Epochs of milliseconds would flood a log: the first, the last, and one in a while.
            case events.EpochEnded(epoch=epoch, row=row) if self._lines.due(
                epoch in (1, self._epochs)
            ):
                spent = time.perf_counter() - self._start
                left = spent / max(epoch - self._before, 1e-9) * (self._epochs - epoch)
                write(
                    f"epoch {epoch}/{self._epochs}  {describe_row(row)}  "
                    f"{row['rows_per_second']:,.0f} rows/s  {left:.0f} s left"
                )
            case events.TrainingResumed() | events.WorkersRestarted():
                if isinstance(event, events.TrainingResumed):
                    self._before = event.update / self._steps
                write(describe_restart(event))
            case events.TrainingEnded():
                write(f"done in {event.seconds:.1f} s: {event.reason}")

    def close(self) -> None:
        """Nothing to tidy."""


class BarProgress:
    """A live bar, on a terminal or in a notebook."""

    def __init__(self, bar: Bar | NotebookBar | None = None) -> None:
        self.bar = bar or Bar(_FIRST)
        self._epochs = 0

    def __call__(self, event: events.Event) -> None:
        """Move the bar."""
        match event:
            case events.StragglerFound() | events.WarningIssued():
                self.bar.write(str(event))
            case events.StrategyChosen():
                self.bar.write(f"strategy: {event.strategy}, because {event.reason}")
            case events.FeaturesCached():
                text = "frozen layers, once"
                self.bar.update(completed=event.rows, total=event.of, description=text)
            case events.TrainingStarted():
                self._epochs = event.epochs
                self.bar.write(describe_start(event))
                self.bar.reset(event.epochs * event.steps_per_epoch, "epoch 1")
                self._steps = event.steps_per_epoch
            case events.StepEnded():
                note = f"loss {event.loss:.4f}  {event.rows_per_second:,.0f} rows/s"
                text = f"epoch {event.epoch}/{self._epochs}"
                self.bar.update(completed=event.step, description=text, note=note)
            case events.EpochEnded(epoch=epoch, row=row):
                note = f"{describe_row(row)}  {row['rows_per_second']:,.0f} rows/s"
                text = f"epoch {epoch}/{self._epochs}"
                self.bar.update(completed=epoch * self._steps, description=text, note=note)
            case events.TrainingResumed() | events.WorkersRestarted():
                if isinstance(event, events.TrainingResumed):
                    text = f"epoch {event.epoch}/{self._epochs}"
                    self.bar.reset(self._epochs * self._steps, text, completed=event.update)
                self.bar.write(describe_restart(event))
            case events.TrainingEnded():
                self.bar.write(f"done in {event.seconds:.1f} s: {event.reason}")

    def close(self) -> None:
        """End the live display."""
        self.bar.close()


def describe_start(event: events.TrainingStarted) -> str:
    """What is about to be trained, in a line."""
    held_out = f" + {event.validation_rows:,} to validate" if event.validation_rows else ""
    parts = ""
    if event.learning is not None:
        more = f" and {len(event.layers) - 3} more" if len(event.layers) > 3 else ""
        parts = f" ({event.learning:,} learn: {', '.join(event.layers[:3])}{more})"
    return (
        f"{event.rows:,} rows{held_out}, {event.workers} worker{'s' * (event.workers > 1)}, "
        f"{event.parameters:,} parameters{parts}, {event.steps_per_epoch} steps an epoch"
    )


def describe_restart(event: events.TrainingResumed | events.WorkersRestarted) -> str:
    """What went wrong, or where training goes on, in a line.

    >>> describe_restart(events.TrainingResumed(update=120, epoch=3, workers_before=4))
    'going on from the checkpoint of update 120, in epoch 3 (written by 4 workers)'
    """
    if isinstance(event, events.TrainingResumed):
        if event.ended:
            return f"finished already, with update {event.update}"
        return (
            f"going on from the checkpoint of update {event.update}, in epoch {event.epoch} "
            f"(written by {event.workers_before} worker{'s' * (event.workers_before > 1)})"
        )
    return (
        f"{event.reason.rstrip('.')}. Beginning again with {event.workers} "
        f"worker{'s' * (event.workers > 1)} (restart {event.restart} of {event.most})"
    )


def display(show: bool) -> PlainProgress | BarProgress | None:
    """The display that suits where we are."""
    if not show:
        return None
    if in_notebook():
        return BarProgress(NotebookBar(_FIRST))
    return BarProgress() if sys.stderr.isatty() and sys.stdout.isatty() else PlainProgress()


class EventDispatcher:
    """Gives events of workers to the display and to the user's observer; a context manager.

    Messages that are no events go to `otherwise`.
    """

    def __init__(
        self, show: bool, observer: Observer | None, otherwise: Callable[[int, object], Any]
    ) -> None:
        self._display = display(show)
        self._observer = observer
        self._otherwise = otherwise
        self._warnings: list[str] = []
        self._begun = 0.0
        """When the first attempt began."""
        self._has_restarted = False

    def __enter__(self) -> Callable[[int, object], Any]:
        return self._dispatch

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.close()
        for message in self._warnings:  # here, since a warning may be an error to the caller
            warnings.warn(message, UserWarning, stacklevel=4)

    def _dispatch(self, rank: int, message: object) -> Any:
        if not isinstance(message, events.Event):
            return self._otherwise(rank, message)
        if isinstance(message, events.WarningIssued | events.StragglerFound):
            self._warnings.append(str(message))
        message = self._with_all_attempts(message)
        if self._display is not None:
            self._display(message)
        self._observe(message)
        return None

    def _with_all_attempts(self, event: events.Event) -> events.Event:
        """An event whose seconds count from the first attempt on: a worker knows its own only."""
        if isinstance(event, events.TrainingStarted) and not self._begun:
            self._begun = time.perf_counter()
        self._has_restarted |= isinstance(event, events.WorkersRestarted)
        if isinstance(event, events.TrainingEnded) and self._has_restarted and self._begun:
            return replace(event, seconds=time.perf_counter() - self._begun)
        return event

    def _observe(self, event: events.Event) -> None:
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception as error:  # a plot that fails must not cost a night of training
            self._observer = None
            self._warnings.append(
                f"The observer raised {type(error).__name__}: {error}. It is not called again."
            )
