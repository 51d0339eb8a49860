"""StudyView: how far a study has come, at one moment: what a display shows of it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farandole.tuning.storage import STATES, ended_trials

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from farandole.tuning.search import Search

_BEST = 3
_LONGEST_VALUE = 24


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A trial in a line."""

    number: int
    arguments: str
    step: int | None
    value: str


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """Counts, the trials that run, and the best so far."""

    metrics: tuple[str, ...]
    counts: Mapping[str, int]
    """Of trials that have ended, by how."""
    before: int = 0
    """How many of them had ended when this call began."""
    running: tuple[TrialRow, ...]
    best: tuple[TrialRow, ...]
    """The best three; of several metrics, three of those that no other trial is better than."""
    undominated: int
    """With several metrics: how many trials no other is better than."""
    seconds_left: float | None
    taken: float

    @property
    def ended(self) -> int:
        """How many trials have ended."""
        return sum(self.counts.values())

    def in_words(self) -> str:
        """The best value and how many trials are in which state."""
        parts = [f"{len(self.running)} running"] if self.running else []
        parts += [f"{self.counts[state]} {state}" for state in ("pruned", "failed")]
        if self.best and len(self.metrics) == 1:
            parts.insert(0, f"best {self.metrics[0]} {self.best[0].value}")
        elif self.best:
            plural = "s" if self.undominated > 1 else ""
            parts.insert(0, f"{self.undominated} best trade-off{plural}")
        return "  ".join(parts)

    def time_left(self, now: float | None = None) -> str:
        """About how long it will take; nothing where that is unknown."""
        if self.seconds_left is None:
            return ""
        passed = (time.perf_counter() if now is None else now) - self.taken
        return f"{duration(max(0.0, self.seconds_left - passed))} left"


class StudyWatch:
    """Takes views of a search."""

    def __init__(self, trials: int | None) -> None:
        self._trials = trials
        self._before: int | None = None
        """How many trials had ended when the first of this call began."""
        self._start = 0.0
        self._front: list[FrozenTrial] = []
        self._seen: set[int] = set()

    def view(self, search: Search) -> StudyView:
        """How it is now."""
        trials = search.study.get_trials(deepcopy=False)
        ended = ended_trials(trials)
        if self._before is None:
            self._before, self._start = len(ended), time.perf_counter()
        states = [trial.state.name for trial in ended]
        complete = [trial for trial in ended if trial.state.name == "COMPLETE"]
        signs = [-1.0 if one.name == "MAXIMIZE" else 1.0 for one in search.study.directions]
        if len(signs) > 1:
            complete = self._undominated(complete, signs)
        best = heapq.nsmallest(_BEST, complete, key=lambda trial: signs[0] * trial.values[0])
        return StudyView(
            metrics=tuple(search.limits.metrics),
            counts={name: states.count(state) for state, name in STATES.items()},
            before=self._before,
            running=tuple(_row(trials[number]) for number in sorted(search.open)),
            best=tuple(_row(trial) for trial in best),
            undominated=len(complete),
            seconds_left=self._seconds_left(search, len(ended)),
            taken=time.perf_counter(),
        )

    def _undominated(
        self, complete: Sequence[FrozenTrial], signs: Sequence[float]
    ) -> list[FrozenTrial]:
        """Those that no other trial is better than; only new ones are compared."""
        for trial in complete:
            if trial.number in self._seen:
                continue
            self._seen.add(trial.number)
            if not any(_dominates(other, trial, signs) for other in self._front):
                self._front = [o for o in self._front if not _dominates(trial, o, signs)]
                self._front.append(trial)
        return self._front

    def _seconds_left(self, search: Search, ended: int) -> float | None:
        """By what this call's trials took so far, and the time that it has."""
        now, known = time.perf_counter(), []
        here = ended - (self._before or 0)
        if self._trials is not None and here > 0:
            known.append((now - self._start) / here * max(0, self._trials - ended))
        if search.limits.max_time is not None:
            known.append(max(0.0, (search.start or now) + search.limits.max_time - now))
        return min(known, default=None)


def _dominates(one: FrozenTrial, other: FrozenTrial, signs: Sequence[float]) -> bool:
    """Whether a trial is as good in all metrics, and better in one."""
    pairs = [
        (sign * a, sign * b) for sign, a, b in zip(signs, one.values, other.values, strict=True)
    ]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _row(trial: FrozenTrial) -> TrialRow:
    step = trial.last_step
    values = trial.values or ([] if step is None else [trial.intermediate_values[step]])
    return TrialRow(
        number=trial.number,
        arguments=in_short(trial.params),
        step=step,
        value="  ".join(f"{value:.4g}" for value in values),
    )


def in_short(arguments: Mapping[str, Any]) -> str:
    """Arguments in one line.

    >>> in_short({"learning_rate": 0.012345678, "activation": "relu", "hidden.depth": 2})
    'learning_rate=0.0123 activation=relu hidden.depth=2'
    """
    return " ".join(f"{name}={_short(value)}" for name, value in arguments.items())


def _short(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(41.7), duration(95), duration(7300)
    ('42 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
