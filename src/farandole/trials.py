"""run_many: the same function on many trials, side by side; each worker has a copy of the data."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from farandole import _spark
from farandole.data.source import ParquetSource, TableSource, local_source
from farandole.engines import Engine, SparkEngine, Task
from farandole.engines import resolve as resolve_engine
from farandole.errors import InputError, WorkerFailed
from farandole.launch import DEFAULT_TIMEOUT, check_timeout, check_workers, print_output
from farandole.trial_worker import Copy, Job, Trial, load, work


class Trials(Sequence[Trial]):
    """What came out of `run_many`, in the order of the trials."""

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

        A value that is a mapping fills a column for each of its keys.
        """
        return pd.DataFrame([_row(trial) for trial in self._trials])

    def __repr__(self) -> str:
        failed = sum(trial.error is not None for trial in self._trials)
        return f"Trials({len(self)} of them, {failed} failed)"


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
    progress: bool = True,
) -> Trials:
    """Call `fn` once for each trial, many at a time: other hyper-parameters, or other folds.

    A worker that is done takes the next trial. One that fails is noted, and the others go on; if
    all fail, the first one's error is raised.

    Args:
        fn: is called as `fn(**trial)`, as `fn(data, **trial)`, or with folds as
            `fn(train, validation, **trial)`; tables are Arrow's.
        trials: the arguments of each call.
        data: a Spark or pandas DataFrame, an Arrow table or the path of Parquet files. Every worker
            has all of it, mapped into memory.
        folds: run each trial so many times, each with another part of the rows held out.
        num_workers: how many trials run at the same time.
        engine: "local" (processes), "spark", or an engine object. By default Spark when
            a session is active, else local.
        seed: for the folds, and for torch's random numbers in each trial, whichever worker runs it.
        timeout: seconds that a worker waits for its peers at the start.
        progress: say on stderr what is done.

    >>> import farandole
    >>> squares = farandole.run_many(lambda x: x * x, [{"x": 3}, {"x": 4}], num_workers=2,
    ...                              engine="local", progress=False)
    >>> squares.values
    [9, 16]
    """
    check_workers(num_workers)
    check_timeout(timeout)
    planned = _planned(fn, trials, data, folds)
    runner = resolve_engine(engine)
    with ExitStack() as stack:
        copy = _everywhere(data, runner, stack)
        job = Job(fn, tuple(planned), copy, folds, seed)
        task = Task(load=load, work=partial(work, job))
        heard = _Listener(len(planned), progress)
        workers = min(num_workers, len(planned))
        try:
            found = runner.run(task, workers, timeout=timeout, on_message=heard)
            heard.done |= {trial.number: trial for part in found for trial in part}
        except WorkerFailed as error:
            if not heard.done:
                raise
            heard.lose(planned, str(error).partition("\n")[0])
    return _assembled(planned, heard.done)


class _Listener:
    """Hears what is done while the workers run, so that a crash loses only what was running."""

    def __init__(self, count: int, progress: bool) -> None:
        self._count = count
        self._progress = progress
        self.done: dict[int, Trial] = {}

    def __call__(self, rank: int, message: object) -> None:
        print_output(rank, message)
        if not isinstance(message, Trial):
            return
        self.done[message.number] = message
        if self._progress:
            said = message.error or _short(message.value)
            place = f"trial {len(self.done)}/{self._count}"
            print(f"{place}  {_describe(message)}  {said}", file=sys.stderr, flush=True)

    def lose(self, planned: Sequence[Trial], why: str) -> None:
        """Note those that never came back."""
        for trial in planned:
            self.done.setdefault(trial.number, replace(trial, error=f"lost: {why}"))


def _planned(fn: Any, trials: Any, data: Any, folds: Any) -> list[Trial]:
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
    if not isinstance(folds, int) or isinstance(folds, bool) or folds < 2:
        raise InputError(f"folds must be an integer of at least 2. Received: folds={folds!r}")
    if data is None:
        raise InputError("folds are parts of the rows of data=, which is missing.")
    pairs = [(one, fold) for one in given for fold in range(folds)]
    return [Trial(number, dict(one), fold) for number, (one, fold) in enumerate(pairs)]


def _everywhere(data: Any, engine: Engine, stack: ExitStack) -> Copy | None:
    """Put the rows where every worker can map them."""
    if data is None:
        return None
    source = local_source(data.toArrow() if _spark.is_dataframe(data) else data, shuffle=True)
    if isinstance(source, ParquetSource):
        local = "://" not in source.path
        return Copy(os.path.abspath(source.path) if local else source.path, parquet=True)
    assert isinstance(source, TableSource)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="farandole-"))
    # Spark keeps distributed files by name, for the whole session.
    path = os.path.join(folder, f"{os.path.basename(folder)}.arrow")
    source.mapped(path)
    if isinstance(engine, SparkEngine):
        _spark.distribute(engine.session, path)
        return Copy(os.path.basename(path), distributed=True)
    return Copy(path)


def _assembled(planned: Sequence[Trial], done: Mapping[int, Trial]) -> Trials:
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
            stacklevel=3,
        )
    return Trials(trials)


def _row(trial: Trial) -> dict[str, Any]:
    value = trial.value if isinstance(trial.value, Mapping) else {"value": trial.value}
    fold = {} if trial.fold is None else {"fold": trial.fold}
    about = {"error": trial.error, "seconds": trial.seconds, "rank": trial.rank}
    return {**trial.options, **fold, **value, **about}


def _describe(trial: Trial) -> str:
    options = ", ".join(f"{name}={_short(value)}" for name, value in trial.options.items())
    return options if trial.fold is None else f"{options} fold {trial.fold}".strip()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
