"""What driver and workers tell each other about a trial. Workers have no need of Optuna."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """One trial, or one fold of it, for a worker to run."""

    number: int
    """Of the trial in its study."""
    arguments: Mapping[str, Any]
    seed: int
    fold: int | None = None
    initial: Mapping[str, Any] | None = None
    """The weights to start from, where another trial hands its own over."""

    @property
    def bare(self) -> TrialRun:
        """The same without what makes it large, for messages that only name it."""
        return replace(self, arguments={}, initial=None)

    @property
    def key(self) -> tuple[int, int | None]:
        """What tells it from all other runs of the study."""
        return self.number, self.fold


@dataclass(frozen=True)
class NextRun:
    """A worker asks for something to run. The answer: a `TrialRun`, `Wait` or None for no more."""


@dataclass(frozen=True)
class Wait:
    """There is nothing to run now, but there may be later."""


@dataclass(frozen=True)
class Report:
    """A worker tells how far a run has come, and asks whether to stop it."""

    run: TrialRun
    step: int | None
    """Of what is reported, an epoch for instance; None: it only asks."""
    value: float | None = None
    is_last: bool = False
    """Whether the run ends with this step by itself: there is nothing left to stop."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended. The answer: whether the driver wants the network."""

    run: TrialRun
    values: Mapping[str, float] = field(default_factory=dict)
    """By the names of metrics; a function that returns a plain number gives `VALUE`."""
    error: str | None = None
    traceback: str = ""
    missing_metric: str | None = None
    """What to say where the metric that is tuned for isn't there, and won't be in other trials."""
    stopped: bool = False
    """Whether it was told to end before its time."""
    seconds: float = 0.0
    row_epochs: int = 0
    """Rows times epochs that it was trained on."""


VALUE = "value"

INTERRUPTED, TIME_UP, STOPPED = "interrupted", "max_time reached", "stopped"
CUT_SHORT = (INTERRUPTED, TIME_UP, STOPPED)
"""Why a trial may have ended through no fault of its own: it runs again when the study goes on."""


@dataclass(frozen=True)
class TrainedNetwork:
    """The network of a run that the driver wanted."""

    number: int
    result: Any
