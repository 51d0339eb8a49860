"""run_many: the same function on many trials, side by side; each worker has a copy of the data."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from farandole.api.run import DEFAULT_TIMEOUT, print_output
from farandole.api.shared_table import share_table
from farandole.api.training_data import home_of
from farandole.api.trial_worker import Trial, TrialStarted, TrialsTask, load, work
from farandole.arguments import check_integer, check_seconds
from farandole.engines import DEFAULT_HEARTBEAT, Engine, Task
from farandole.engines import resolve as resolve_engine
from farandole.errors import InputError, WorkerFailed
from farandole.tracebacks import short_traceback

_OWN_COLUMNS = ("fold", "value", "error", "seconds", "rank")


class Trials(Sequence[Trial]):
    """The results of `run_many`, in the order of the trials."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._trials = list(trials)

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, number: Any) -> Any:
        return self._trials[number]

    @property
    def values(self) -> list[Any]:
        """What the function returned; None where it failed."""
        return [trial.value for trial in self._trials]

    @property
    def table(self) -> pd.DataFrame:
        """One row a trial: its options, fold, value, error, seconds and worker.

        A value that is a mapping fills a column for each of its keys. Options keep their names.
        What would hide behind one of them is called `trial_rank` instead of `rank`, and a value's
        key that is taken `value_error` instead of `error`.
        """
        options = {name for trial in self._trials for name in trial.options}
        own = {name: _unused_name(name, "trial_", options) for name in _OWN_COLUMNS}
        taken = options | {own[name] for name in _OWN_COLUMNS if name != "value"}
        return pd.DataFrame([_row(trial, own, taken) for trial in self._trials])

    def __repr__(self) -> str:
        failed = sum(trial.error is not None for trial in self._trials)
        return f"Trials({len(self)} of them, {failed} failed)"


@short_traceback
def run_many(
    fn: Callable[..., Any],
    trials: Iterable[Mapping[str, Any]] = ({},),
    *,
    data: Any = None,
    folds: int | None = None,
    num_workers: int,
    engine: str | Engine | None = None,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    heartbeat: float = DEFAULT_HEARTBEAT,
    progress: bool = True,
) -> Trials:
    """Call `fn` once for each trial, many at a time: other hyper-parameters, or other folds.

    A worker that is done takes the next trial. One that fails is noted, and the others go on; if
    all fail, the first one's error is raised. A trial that ends its worker (out of memory, a crash)
    is noted as lost. It takes the ring along, so a new one runs what is left, and again from their
    start the trials that peers were at. That goes on for as long as every ring finishes or loses
    a trial; after one that does neither, what is left is lost. It takes a driver that workers can
    reach: without, a crash loses everything.

    Args:
        fn: is called as `fn(**trial)`, as `fn(data, **trial)`, or with folds as
            `fn(train, validation, **trial)`; tables are Arrow's.
        trials: the arguments of each call.
        data: a Spark or pandas DataFrame, an Arrow table, the path of Parquet files, or what Ray
            has. Every worker has all of it, mapped into memory. On a cluster, Spark keeps what it
            has brought to its workers until the session ends, with no way to take it back; the same
            rows go once.
        folds: run each trial so many times, each with another part of the rows held out.
        num_workers: how many trials run at the same time.
        engine: "local" (processes), "spark", "ray", or an engine object. By default Ray for
            rows that it has; else Spark when a session is active, else local.
        seed: for the folds, and for the random numbers of torch, Python and NumPy's global
            generator in each trial, whichever worker runs it.
        timeout: seconds that a worker waits for its peers in a collective of the function's own.
        heartbeat: seconds after which a worker that is stopped, locked up or out of reach is given
            up; its trial is lost.
        progress: say on stderr what is done.

    >>> import farandole
    >>> squares = farandole.run_many(lambda x: x * x, [{"x": 3}, {"x": 4}], num_workers=2,
    ...                              engine="local", progress=False)
    >>> squares.values
    [9, 16]
    """
    check_integer("num_workers", num_workers)
    check_seconds("timeout", timeout)
    check_seconds("heartbeat", heartbeat)
    planned = _plan_trials(fn, trials, data, folds)
    runner = resolve_engine(home_of(data) if engine is None else engine)
    with ExitStack() as stack:
        rows = share_table(data, runner, stack)
        log = _TrialLog(planned, progress)
        while left := log.left:
            trials_task = TrialsTask(fn, tuple(left), rows, folds, seed)
            task = Task(load=load, work=partial(work, trials_task))
            workers = min(num_workers, len(left))
            limits: dict[str, Any] = {"timeout": timeout, "heartbeat": heartbeat}
            _run_remaining(partial(runner.run, task, workers, **limits), log)
    return _results(planned, log.done)


def _run_remaining(run: Callable[..., list[Any]], log: _TrialLog) -> None:
    """Run what is left, until it is done or a worker dies: then there is less left than before."""
    before = len(log.done)
    try:
        found = run(on_message=log)
        log.done |= {trial.number: trial for part in found for trial in part}
    except Exception as error:  # of any kind: it must not cost hours of results
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, WorkerFailed):
            why = error.summary
            if error.rank is not None:
                log.lose(log.running.get(error.rank), why)
        if not log.done:
            raise
        if len(log.done) == before:
            for trial in log.left:
                log.lose(trial.number, why)
    log.running.clear()


class _TrialLog:
    """Notes which trials have started and ended, so that a crash loses only the running ones."""

    def __init__(self, planned: Sequence[Trial], progress: bool) -> None:
        self._planned = planned
        self._progress = progress
        self.done: dict[int, Trial] = {}
        self.running: dict[int, int] = {}
        """The trial that each worker is running."""

    @property
    def left(self) -> list[Trial]:
        """Trials without a result."""
        return [trial for trial in self._planned if trial.number not in self.done]

    def __call__(self, rank: int, message: object) -> None:
        print_output(rank, message)
        if isinstance(message, TrialStarted):
            self.running[rank] = message.number
        elif isinstance(message, Trial):
            self.running.pop(rank, None)
            self._note(message)

    def lose(self, number: int | None, why: str) -> None:
        """Note that a trial has no result, because its worker died."""
        if number is None or number in self.done:
            return
        rank = next((rank for rank, at in self.running.items() if at == number), None)
        text = f"lost: {why.partition(chr(10))[0]}"
        self._note(replace(self._planned[number], error=text, rank=rank))

    def _note(self, trial: Trial) -> None:
        self.done[trial.number] = trial
        if self._progress:
            said = trial.error or _short(trial.value)
            place = f"trial {len(self.done)}/{len(self._planned)}"
            print(f"{place}  {_describe(trial)}  {said}", file=sys.stderr, flush=True)


def _plan_trials(fn: Any, trials: Any, data: Any, folds: Any) -> list[Trial]:
    if not callable(fn):
        raise InputError(f"fn must be a function. Received: fn={fn!r}")
    given = list(trials)
    if not given or not all(isinstance(one, Mapping) for one in given):
        raise InputError(
            "trials must be a list of mappings from arguments to values, at least one. "
            f"Received: {_short(given)}"
        )
    if folds is None:
        return [Trial(number, dict(one)) for number, one in enumerate(given)]
    check_integer("folds", folds, least=2)
    if data is None:
        raise InputError("folds are parts of the rows of data=, which is missing.")
    pairs = [(one, fold) for one in given for fold in range(folds)]
    return [Trial(number, dict(one), fold) for number, (one, fold) in enumerate(pairs)]


def _results(planned: Sequence[Trial], done: Mapping[int, Trial]) -> Trials:
    trials = [done[trial.number] for trial in planned]
    failed = [trial for trial in trials if trial.error is not None]
    if len(failed) == len(trials):
        first = failed[0]
        raise WorkerFailed(first.rank or 0, str(first.error), first.traceback)
    if failed:
        warnings.warn(
            f"{len(failed)} of {len(trials)} trials failed. The first: {_describe(failed[0])}  "
            f"{failed[0].error}",
            UserWarning,
            stacklevel=4,
        )
    return Trials(trials)


def _row(trial: Trial, own: Mapping[str, str], taken: set[str]) -> dict[str, Any]:
    row = dict(trial.options)
    if trial.fold is not None:
        row[own["fold"]] = trial.fold
    if isinstance(trial.value, Mapping):
        row |= {_unused_name(name, "value_", taken): value for name, value in trial.value.items()}
    else:
        row[own["value"]] = trial.value
    return row | {own[name]: getattr(trial, name) for name in ("error", "seconds", "rank")}


def _unused_name(name: str, prefix: str, taken: set[str]) -> str:
    while name in taken:
        name = f"{prefix}{name}"
    return name


def _describe(trial: Trial) -> str:
    options = ", ".join(f"{name}={_short(value)}" for name, value in trial.options.items())
    return options if trial.fold is None else f"{options} fold {trial.fold}".strip()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
