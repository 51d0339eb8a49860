"""What a worker of run_many does: take the next trial, run it, report it."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import pyarrow as pa
import torch.distributed as dist

from farandole.api.shared_table import SharedTable
from farandole.data import fold_of
from farandole.training import seed_everything
from farandole.world import World

_POLL_SECONDS = 0.1
"""How often rank 0 checks whether its peers are done."""


@dataclass(frozen=True)
class Trial:
    """One call of the function, and its result."""

    number: int
    options: Mapping[str, Any]
    """The arguments it was called with."""
    fold: int | None = None
    """Which part of the rows was held out, where there are folds."""
    value: Any = None
    error: str | None = None
    """The error that it raised, if it failed."""
    traceback: str = field(default="", repr=False)
    seconds: float = 0.0
    rank: int | None = None
    """The worker that ran it."""


@dataclass(frozen=True)
class TrialStarted:
    """Sent before a trial runs: if its worker dies, the driver knows in which trial."""

    number: int


@dataclass(frozen=True)
class TrialsTask:
    """All that a worker is told."""

    fn: Callable[..., Any]
    trials: tuple[Trial, ...]
    rows: SharedTable | None
    folds: int | None
    seed: int


def load(rank: int, size: int, batches: Iterator[pa.RecordBatch]) -> None:
    """Nothing to load: `share_table` has made the rows available."""


def work(task: TrialsTask, world: World, _: None) -> list[Trial]:
    """Take trials until there are none left; report each, in case that a later one crashes."""
    table = None if task.rows is None else task.rows.table()
    done = []
    for index in _next_indices(len(task.trials), world):
        trial = task.trials[index]
        world.link.tell(TrialStarted(trial.number))
        world.link.flush()
        trial = replace(_run_trial(task, trial, table), rank=world.rank)
        world.link.tell(trial)
        done.append(trial)
    return done


def _next_indices(count: int, world: World) -> Iterator[int]:
    """Indices of trials that no other worker has taken."""
    if world.size == 1:
        yield from range(count)
        return
    store = dist.distributed_c10d._get_default_store()
    while (index := store.add("farandole/trials", 1) - 1) < count:
        yield index
    store.add("farandole/trials/over", 1)
    # The store runs in rank 0, which has to outlive its peers: a peer may need it after hours, so
    # there is no timeout here. If a peer dies, the engine ends this worker too.
    while world.is_leader and store.add("farandole/trials/over", 0) < world.size:
        time.sleep(_POLL_SECONDS)


def _run_trial(task: TrialsTask, trial: Trial, table: pa.Table | None) -> Trial:
    start = time.perf_counter()
    seed_everything(task.seed + trial.number)
    try:
        value = task.fn(*_tables(table, trial.fold, task), **trial.options)
        pickle.loads(cloudpickle.dumps(value))  # a value that can't be pickled fails this trial
        return replace(trial, value=value, seconds=time.perf_counter() - start)
    except (Exception, SystemExit) as error:
        return replace(
            trial,
            error=f"{type(error).__name__}: {error}",
            traceback=traceback.format_exc(),
            seconds=time.perf_counter() - start,
        )


def _tables(table: pa.Table | None, fold: int | None, task: TrialsTask) -> tuple[pa.Table, ...]:
    if table is None:
        return ()
    if fold is None or task.folds is None:
        return (table,)
    held_out = fold_of(table.num_rows, task.folds, task.seed) == fold
    return table.filter(pa.array(~held_out)), table.filter(pa.array(held_out))
