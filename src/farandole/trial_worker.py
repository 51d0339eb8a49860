"""What a worker does in run_many: take the next trial, run it, tell of it."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist

from farandole import _spark
from farandole.data.source import ParquetSource
from farandole.world import World


@dataclass(frozen=True)
class Trial:
    """One call, and what became of it."""

    number: int
    options: Mapping[str, Any]
    """The arguments it was called with."""
    fold: int | None = None
    """Which part of the rows was held out, where there are folds."""
    value: Any = None
    error: str | None = None
    """What it said when it failed."""
    traceback: str = field(default="", repr=False)
    seconds: float = 0.0
    rank: int | None = None
    """The worker that ran it."""


@dataclass(frozen=True)
class Copy:
    """Where a worker finds the rows."""

    path: str
    parquet: bool = False
    distributed: bool = False
    """Whether it is one of the files that Spark brings to every worker."""

    def table(self) -> pa.Table:
        """All of them; an Arrow file is mapped, so that the workers of a host share it."""
        if self.parquet:
            return ParquetSource(self.path).table()
        path = _spark.distributed_path(self.path) if self.distributed else self.path
        return pa.ipc.open_file(pa.memory_map(path)).read_all()


@dataclass(frozen=True)
class Job:
    """All that a worker is told."""

    fn: Callable[..., Any]
    trials: tuple[Trial, ...]
    copy: Copy | None
    folds: int | None
    seed: int


def load(rank: int, size: int, batches: Iterator[pa.RecordBatch]) -> None:
    """Rows are everywhere already."""


def work(job: Job, world: World, _: None) -> list[Trial]:
    """Take trials until there are none left; tell of each, in case that a later one kills us."""
    table = None if job.copy is None else job.copy.table()
    done = []
    for number in _next(len(job.trials), world):
        trial = replace(_tried(job, job.trials[number], table), rank=world.rank)
        world.link.tell(trial)
        done.append(trial)
    return done


def _next(count: int, world: World) -> Iterator[int]:
    """Numbers that no other worker has."""
    if world.size == 1:
        yield from range(count)
        return
    store = dist.distributed_c10d._get_default_store()
    while (number := store.add("farandole/trials", 1) - 1) < count:
        yield number


def _tried(job: Job, trial: Trial, table: pa.Table | None) -> Trial:
    start = time.perf_counter()
    torch.manual_seed(job.seed + trial.number)
    try:
        value = job.fn(*_tables(table, trial.fold, job), **trial.options)
        pickle.loads(cloudpickle.dumps(value))  # what can't travel is this trial's own failure
        return replace(trial, value=value, seconds=time.perf_counter() - start)
    except Exception as error:
        return replace(
            trial,
            error=f"{type(error).__name__}: {error}",
            traceback=traceback.format_exc(),
            seconds=time.perf_counter() - start,
        )


def _tables(table: pa.Table | None, fold: int | None, job: Job) -> tuple[pa.Table, ...]:
    if table is None:
        return ()
    if fold is None or job.folds is None:
        return (table,)
    held_out = fold_of(table.num_rows, job.folds, job.seed) == fold
    return table.filter(pa.array(~held_out)), table.filter(pa.array(held_out))


def fold_of(rows: int, folds: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which fold each row belongs to: shuffled by the seed, and as even as can be.

    >>> sorted(fold_of(7, 3).tolist())
    [0, 0, 0, 1, 1, 2, 2]
    """
    return np.random.default_rng(seed).permutation(np.arange(rows) % folds)
