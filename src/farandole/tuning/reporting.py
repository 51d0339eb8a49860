"""report(): how a function that is tuned tells how far it has come, and learns that it may end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from farandole.arguments import check_integer
from farandole.errors import InputError
from farandole.tuning.trial_run import Report, TrialRun
from farandole.world import Link


class TrialPruned(Exception):
    """The trial isn't worth going on with: let it pass, after tidying up if need be."""

    row_epochs = 0
    """Rows times epochs that it was trained on until then."""


class MetricNeverReported(InputError):
    """What is tuned for isn't there, in no trial: the study has to end."""


class CurrentTrial:
    """The run that this worker is at."""

    def __init__(self, run: TrialRun, link: Link) -> None:
        self.run = run
        self.stopped = False
        self._link = link
        self._step = 0

    def report(self, value: float | None, step: int | None, *, is_last: bool = False) -> bool:
        """Tell the driver; says whether to stop."""
        if value is not None:
            self._step = self._step + 1 if step is None else step
            step = self._step
        answer = self._link.ask(Report(self.run.bare, step, value, is_last))
        self.stopped = self.stopped or bool(answer)
        return self.stopped


_current: ContextVar[CurrentTrial | None] = ContextVar("farandole_trial", default=None)


@contextmanager
def entered_trial(trial: CurrentTrial) -> Iterator[CurrentTrial]:
    """Make `trial` the current one for the body of a `with`."""
    token = _current.set(trial)
    try:
        yield trial
    finally:
        _current.reset(token)


def report(value: Any, step: int | None = None) -> None:
    """Tell how a trial does after a step, from within a function that `farandole.tune` calls.

    If the trial is one of the worse ones, or time is up, this raises a `TrialPruned`, which the
    function should let pass. Outside of a trial nothing happens.

    Args:
        value: of the metric that is tuned for, so far.
        step: of which this is the value, counted from 1; by default the next one.

    >>> report(0.5)
    """
    trial = _current.get()
    if trial is None:
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"report() takes a number. Received: {value!r}") from None
    if step is not None:
        check_integer("step", step, least=0)
    if trial.report(number, step):
        raise TrialPruned(f"trial {trial.run.number} was stopped after step {step}")
