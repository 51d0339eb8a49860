"""Search: which trial runs next, when one is stopped, and which is the best."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from farandole.errors import InputError, WorkerFailed
from farandole.tuning.space import Space, suggest
from farandole.tuning.trial_run import STOPPED, TIME_UP, VALUE, Report, RunResult, TrialRun, Wait

if TYPE_CHECKING:
    from optuna import Study, Trial

_MOST_LOSSES = 1
"""How often a run begins again after its worker died; the next time it is the trial's fault."""

_MOST_ALIKE = 4
"""With so many trials that fail in the same way, and no other, the study is at fault."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A trial to run next."""

    trial: Trial
    arguments: Mapping[str, Any]
    initial: Mapping[str, Any] | None = None


class Proposer(Protocol):
    """Decides which arguments are tried next."""

    keeps_networks: bool
    """Whether it wants the network of every trial."""

    def propose(self) -> Proposal | None:
        """The next trial; None: not before another has ended."""
        ...

    def observe(self, number: int, value: float | None, network: Any) -> None:
        """A trial has ended; its value is None if it failed."""
        ...


class SampledTrials:
    """Asks the study's sampler."""

    keeps_networks = False

    def __init__(self, study: Study, space: Space) -> None:
        self._study = study
        self._space = space

    def propose(self) -> Proposal:
        """What the sampler suggests, or what was queued."""
        trial = self._study.ask()
        return Proposal(trial=trial, arguments=suggest(self._space, trial))

    def observe(self, number: int, value: float | None, network: Any) -> None:
        """The sampler looks at the study itself."""


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """How much is tried, and what counts."""

    metrics: Sequence[str]
    trials: int
    seed: int = 0
    folds: int | None = None
    max_time: float | None = None
    keeps_best: bool = False
    """Whether trials have networks, of which the best are kept."""


@dataclass
class OpenTrial:
    """A trial that has begun."""

    trial: Trial
    arguments: Mapping[str, Any]
    running: set[int | None] = field(default_factory=set)
    """The folds that workers are at."""
    results: dict[int | None, RunResult] = field(default_factory=dict)
    is_pruned: bool = False
    is_over: bool = False
    """Whether nothing more of it begins: one of its folds failed, or was stopped."""
    start: float = field(default_factory=time.perf_counter)
    last: float | None = None
    """What it reported last."""
    steps: set[int] = field(default_factory=set)
    """The steps that were reported."""

    @property
    def by_fold(self) -> list[RunResult]:
        """What has come, in the order of folds: a mean must not depend on who was first."""
        return sorted(self.results.values(), key=lambda result: result.run.fold or 0)


class Search:
    """The state of a study that runs. Its methods may be called from any thread."""

    def __init__(
        self,
        study: Study,
        proposer: Proposer,
        limits: SearchLimits,
        *,
        done: int = 0,
        on_change: Callable[[Search], None] = lambda search: None,
    ) -> None:
        self.study = study
        self.limits = limits
        self.start: float | None = None
        """When the first trial began: workers may take their time to come."""
        self.networks: dict[int, Any] = {}
        """Trained networks of the best trials, by their numbers."""
        self.open: dict[int, OpenTrial] = {}
        self.error: BaseException | None = None
        self.ended: str | None = None
        """Why no more trials begin before all are done."""
        self._proposer = proposer
        self._on_change = on_change
        self._left = limits.trials - done
        self._queue: deque[TrialRun] = deque()
        self._errors: list[str] = []
        self._has_succeeded = done > 0
        self._losses: dict[tuple[int, int | None], int] = {}
        self._lock = threading.RLock()

    def next_run(self) -> TrialRun | Wait | None:
        """What to run now."""
        with self._lock:
            self.start = self.start or time.perf_counter()
            if self._is_over():
                return None
            if not self._queue and self._left > 0:
                self._begin_trial()
            if self._queue:
                run = self._queue.popleft()
                self.open[run.number].running.add(run.fold)
                return run
            return Wait() if self.open or (self._left > 0 and self.error is None) else None

    def report(self, message: Report) -> bool:
        """Take note of how a run does; says whether to stop it."""
        step, value = message.step, message.value
        with self._lock:
            found = self.open.get(message.run.number)
            if found is None or found.is_pruned or found.is_over or self._is_over():
                return True
            if step is None or value is None or len(self.limits.metrics) > 1:
                return False
            # Of several folds the first to come to a step speaks for the trial.
            if math.isfinite(value) and step not in found.steps:
                found.trial.report(value, step)
                found.steps.add(step)
                found.last = value
                found.is_pruned = not message.is_last and found.trial.should_prune()
                self._on_change(self)
            return found.is_pruned

    def finish(self, result: RunResult) -> bool:
        """Take note of how a run ended; says whether its network is wanted."""
        with self._lock:
            number, found = result.run.number, self.open.get(result.run.number)
            if found is None:  # the study was closed meanwhile
                return False
            found.running.discard(result.run.fold)
            found.results[result.run.fold] = result
            if result.missing_metric is not None:
                self._fail(InputError(result.missing_metric))
            if result.error is not None or result.stopped:
                self._end_other_folds(found)
            self._tell_if_done(found)
            self._on_change(self)
            return self._is_wanted(number)

    def lose(self, run: TrialRun, why: str) -> None:
        """The worker of a run died: it runs again, unless that has happened before."""
        with self._lock:
            if run.number not in self.open:
                if self._proposer.keeps_networks:  # its network got lost with it
                    self._proposer.observe(run.number, None, None)
                return
            found = self.open[run.number]
            if run.fold in found.results:
                return
            found.running.discard(run.fold)
            self._losses[run.key] = self._losses.get(run.key, 0) + 1
            if self._losses[run.key] > _MOST_LOSSES:
                error = f"its worker was lost twice: {why}"
                found.results[run.fold] = RunResult(run=run.bare, error=error)
                self._end_other_folds(found)
            elif not found.is_over:
                self._queue.appendleft(run)
            self._tell_if_done(found)
            self._on_change(self)

    def keep(self, number: int, network: Any) -> None:
        """Keep the network of a trial that was wanted."""
        with self._lock:
            if self._proposer.keeps_networks:
                value = None if network is None else self._value_of(number)
                self._proposer.observe(number, value, network)
            if network is None:  # it could not be sent
                return
            best = set(self.best_numbers)
            kept = {**self.networks, number: network}
            self.networks = {n: one for n, one in kept.items() if n in best}

    def stop(self, reason: str) -> None:
        """No more trials; those that run end at their next report."""
        with self._lock:
            self.ended = self.ended or reason

    def fail(self, error: BaseException) -> None:
        """End the study with an error."""
        with self._lock:
            self._fail(error)

    def close(self) -> None:
        """End what is still open, once no worker runs any more."""
        with self._lock:
            for found in list(self.open.values()):
                self._tell_stopped(found)

    @property
    def has_work(self) -> bool:
        """Whether there is anything left to run."""
        with self._lock:
            return not self._is_over() and (self._left > 0 or bool(self.open))

    @property
    def best_numbers(self) -> list[int]:
        """The best trial; with several metrics, all that no other is better than."""
        from optuna.trial import TrialState

        if not self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            return []
        if len(self.limits.metrics) > 1:
            return [trial.number for trial in self.study.best_trials]
        return [self.study.best_trial.number]

    def _is_over(self) -> bool:
        limit, start = self.limits.max_time, self.start
        if limit is not None and start is not None and time.perf_counter() - start > limit:
            self.ended = self.ended or TIME_UP
        return self.ended is not None or self.error is not None

    def _begin_trial(self) -> None:
        try:
            proposal = self._proposer.propose()
        except Exception as error:
            self._fail(error)
            return
        if proposal is None:
            return
        self._left -= 1
        trial = proposal.trial
        self.open[trial.number] = OpenTrial(trial, proposal.arguments)
        run = TrialRun(
            number=trial.number,
            arguments=proposal.arguments,
            seed=self.limits.seed,
            initial=proposal.initial,
        )
        folds = [None] if self.limits.folds is None else range(self.limits.folds)
        self._queue.extend(replace(run, fold=fold) for fold in folds)
        self._on_change(self)

    def _end_other_folds(self, found: OpenTrial) -> None:
        """Begin no more folds of a trial; those that run are told to stop when they report."""
        found.is_over = True
        self._queue = deque(run for run in self._queue if run.number != found.trial.number)

    def _tell_if_done(self, found: OpenTrial) -> None:
        """Close a trial, once all that it cost is known."""
        failures = [result for result in found.by_fold if result.error is not None]
        if found.running:
            return
        if failures:
            self._tell(found, None, failures[0].error, failures[0].traceback)
        elif found.is_over:
            self._tell_stopped(found)
        elif len(found.results) == (self.limits.folds or 1):
            self._tell_values(found)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error

    def _is_wanted(self, number: int) -> bool:
        if self._proposer.keeps_networks:
            return self._value_of(number) is not None
        return self.limits.keeps_best and not self.limits.folds and number in self.best_numbers

    def _value_of(self, number: int) -> float | None:
        values = self.study.get_trials(deepcopy=False)[number].values
        return None if not values else float(values[0])

    def _check_failures(self, error: str | None, traceback: str) -> None:
        """End the study if it begins with trials that all fail in the same way."""
        if error is None or self._has_succeeded:
            self._has_succeeded = True
            return
        self._errors.append(error)
        if len(self._errors) >= _MOST_ALIKE and len(set(self._errors)) == 1:
            self._fail(_failure(len(self._errors), error, traceback))

    def _tell_values(self, found: OpenTrial) -> None:
        """All runs of a trial have ended well."""
        values, missing = [], None
        for metric in self.limits.metrics:
            each = [value_of(result, metric) for result in found.by_fold]
            if None in each:
                missing = metric
                break
            values.append(sum(each) / len(each))  # type: ignore[arg-type]
        if missing is not None:
            known = ", ".join(next(iter(found.results.values())).values) or "nothing"
            self._fail(
                InputError(
                    f"metric={missing!r} was never reported: a trial gave {known}. Name one of "
                    "those, or return it."
                )
            )
            self._tell(found, None, f"no {missing}")
        elif not all(math.isfinite(value) for value in values):
            self._tell(found, None, f"{self.limits.metrics[0]} is {values[0]}: it has diverged")
        else:
            self._tell(found, values)

    def _tell_stopped(self, found: OpenTrial) -> None:
        """A trial that was pruned, or whose time was up."""
        reason = "pruned" if found.is_pruned else self.ended or STOPPED
        self._tell(found, None, None if found.steps else reason, reason=reason)

    def _tell(
        self,
        found: OpenTrial,
        values: list[float] | None,
        error: str | None = None,
        traceback: str = "",
        reason: str | None = None,
    ) -> None:
        """Close a trial: complete with values, failed with an error, or else pruned."""
        from optuna.trial import TrialState

        trial, results = found.trial, found.by_fold
        attributes: dict[str, Any] = {
            "seconds": sum(result.seconds for result in results),
            "row_epochs": sum(result.row_epochs for result in results),
            "error": error,
            "traceback": traceback[-4000:] or None,
            "reason": reason,
        }
        if self.limits.folds and values is not None:
            metrics = self.limits.metrics
            attributes["folds"] = [[value_of(r, m) for m in metrics] for r in results]
        for name, value in attributes.items():
            if value is not None:
                trial.set_user_attr(name, value)
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED
        if error is not None:
            state = TrialState.FAIL
        self.study.tell(trial, values, state=state)
        if reason is None:
            self._check_failures(error, traceback)
        del self.open[trial.number]
        if not self._proposer.keeps_networks or values is None:
            self._proposer.observe(trial.number, None if values is None else values[0], None)


def _failure(trials: int, error: str, traceback: str) -> WorkerFailed:
    return WorkerFailed(0, f"all {trials} trials failed. The first: {error}", traceback)


def check_any_success(study: Study) -> None:
    """Raise the first trial's error if no trial has ended in another way."""
    trials = study.get_trials(deepcopy=False)
    if trials and all(trial.state.name == "FAIL" for trial in trials):
        first = trials[0].user_attrs
        raise _failure(len(trials), first.get("error", ""), first.get("traceback", ""))


def value_of(result: RunResult, metric: str) -> float | None:
    """The value of a metric; a function that returns one number need not name it."""
    found = result.values.get(metric)
    return result.values.get(VALUE) if found is None else found
