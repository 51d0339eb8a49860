"""What a worker of a study does: ask for a run, carry it out, report it, and ask for the next."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from farandole.api import SharedTable
from farandole.data import KeptTable
from farandole.engines import InlineEngine
from farandole.errors import LaunchError
from farandole.tuning.objective import FunctionObjective, RunOutput, TrainingObjective
from farandole.tuning.reporting import CurrentTrial, MetricNeverReported, TrialPruned
from farandole.tuning.trial_run import NextRun, RunResult, TrainedNetwork, TrialRun, Wait
from farandole.world import World

_WAIT_SECONDS = 0.05
"""Until a worker asks again, where there is nothing to run at the moment."""


@dataclass(frozen=True)
class SlotTask:
    """All that a worker is told."""

    objective: FunctionObjective | TrainingObjective
    rows: SharedTable | None = None
    fold_column: str | None = None


def load(rank: int, size: int, batches: Iterator[pa.RecordBatch]) -> None:
    """Nothing to load: the rows are in a file that all workers map."""


def work(task: SlotTask, world: World, _: None) -> None:
    """Run trials until there are no more."""
    table = None if task.rows is None else task.rows.table()
    data = None if table is None else KeptTable(table)
    try:
        while (answer := _next(world)) is not None:
            if isinstance(answer, Wait):
                time.sleep(_WAIT_SECONDS)
                continue
            result, output = carried_out(task, answer, data, world)
            if world.link.ask(result):
                _send_network(world, answer.number, None if output is None else output.result)
    finally:
        if data is not None:
            data.close()


def _send_network(world: World, number: int, network: Any) -> None:
    """Send a network that is wanted; one that can't be pickled is told of as none."""
    try:
        world.link.ask(TrainedNetwork(number, network))
    except ConnectionError:
        world.link.ask(TrainedNetwork(number, None))


def _next(world: World) -> TrialRun | Wait | None:
    try:
        answer: TrialRun | Wait | None = world.link.ask(NextRun())
        return answer
    except ConnectionError as error:
        raise LaunchError(
            f"Tuning needs a driver that its workers can reach, but {error}. `farandole doctor` "
            "says whether they can."
        ) from None


@contextmanager
def trials_silenced() -> Iterator[None]:
    """Leave out warnings of training: each trial would give the same; errors are recorded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def carried_out(
    task: SlotTask, run: TrialRun, data: KeptTable | None, world: World
) -> tuple[RunResult, RunOutput | None]:
    """How a run ended: an error of the trial's own is a result too."""
    start = time.perf_counter()
    trial = CurrentTrial(run, world.link)
    try:
        objective = task.objective
        if isinstance(objective, TrainingObjective):
            with trials_silenced():
                output = objective.run(run, data, trial, engine=InlineEngine())
        else:
            output = objective.run(run, _tables(data, run.fold, task.fold_column), trial)
        seconds = time.perf_counter() - start
        values, rows = dict(output.values), output.row_epochs
        return RunResult(run=run.bare, values=values, seconds=seconds, row_epochs=rows), output
    except (Exception, SystemExit) as error:
        seconds = time.perf_counter() - start
        if is_pruned(error):
            return pruned(run, error, seconds), None
        return failed(run, error, seconds), None


def pruned(run: TrialRun, error: BaseException, seconds: float) -> RunResult:
    """The result of a run that was stopped."""
    rows = getattr(error, "row_epochs", 0)
    return RunResult(run=run.bare, stopped=True, seconds=seconds, row_epochs=rows)


def failed(run: TrialRun, error: BaseException, seconds: float) -> RunResult:
    """The result of a run that raised."""
    return RunResult(
        run=run.bare,
        error=f"{type(error).__name__}: {error}",
        missing_metric=str(error) if isinstance(error, MetricNeverReported) else None,
        traceback="".join(traceback.format_exception(error)),
        seconds=seconds,
    )


def is_pruned(error: BaseException) -> bool:
    """Whether a trial was stopped, by our word or by Optuna's."""
    optuna: Any = sys.modules.get("optuna")
    return isinstance(error, TrialPruned) or (
        optuna is not None and isinstance(error, optuna.TrialPruned)
    )


def _tables(data: KeptTable | None, fold: int | None, column: str | None) -> Sequence[pa.Table]:
    """What a function is called with: all rows, or those to train on and those held out."""
    if data is None:
        return ()
    if fold is None or column is None:
        return (data.table,)
    held_out = pa.compute.equal(data.table[column], fold)
    rows = data.table.drop_columns([column])
    return rows.filter(pa.compute.invert(held_out)), rows.filter(held_out)
