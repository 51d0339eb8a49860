"""What a worker of run_many does: take the next trial, run it, report it. And its rows."""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist

from farandole import _spark
from farandole.data import (
    ParquetSource,
    TableSource,
    local_source,
    read_table,
    table_file,
    write_table,
)
from farandole.engines import Engine, SparkEngine
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
class SharedTable:
    """A file that every worker can read the rows from."""

    path: str
    parquet: bool = False
    distributed: bool = False
    """Whether Spark copies it to every worker (`addFile`, `addArtifact`)."""

    def table(self) -> pa.Table:
        """All rows; an Arrow file is memory-mapped, so that the workers of a host share it."""
        if self.parquet:
            return ParquetSource(self.path).table()
        path = _spark.distributed_path(self.path) if self.distributed else self.path
        return read_table(path)


def share_table(data: Any, engine: Engine, stack: ExitStack) -> SharedTable | None:
    """Write the rows to a file that every worker can read."""
    if data is None:
        return None
    source = local_source(data.toArrow() if _spark.is_dataframe(data) else data, shuffle=True)
    if isinstance(source, ParquetSource):
        local = "://" not in source.path
        return SharedTable(os.path.abspath(source.path) if local else source.path, parquet=True)
    assert isinstance(source, TableSource)
    if isinstance(engine, SparkEngine) and not _workers_see_local_files(engine.session):
        path = _write_named_by_content(source)
        _spark.distribute(engine.session, path)
        return SharedTable(os.path.basename(path), distributed=True)
    return SharedTable(stack.enter_context(table_file(source.table)))


def _workers_see_local_files(session: Any) -> bool:
    """Whether the session's workers run on this machine, with its files."""
    return _spark.is_local(session) and not _spark.is_connect(session)


def _write_named_by_content(source: TableSource) -> str:
    """A file of the rows, named by its content, that stays until this process ends.

    Spark fetches it again for every executor that comes later, and knows it by its name.
    """
    folder = _process_folder()
    path = os.path.join(folder, "rows.arrow")
    write_table(source.table, path)
    with open(path, "rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()
    named = os.path.join(folder, f"farandole-{name}.arrow")
    os.replace(path, named)
    return named


@cache
def _process_folder() -> str:
    """A folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="farandole-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
    _seed_everything(task.seed + trial.number)
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


def _seed_everything(seed: int) -> None:
    """Seed torch, Python and NumPy's global generator, which takes 32 bits."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def _tables(table: pa.Table | None, fold: int | None, task: TrialsTask) -> tuple[pa.Table, ...]:
    if table is None:
        return ()
    if fold is None or task.folds is None:
        return (table,)
    held_out = fold_of(table.num_rows, task.folds, task.seed) == fold
    return table.filter(pa.array(~held_out)), table.filter(pa.array(held_out))


def fold_of(rows: int, folds: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which fold each row belongs to: shuffled by the seed, and as even as can be.

    >>> sorted(fold_of(7, 3).tolist())
    [0, 0, 0, 1, 1, 2, 2]
    """
    return np.random.default_rng(seed).permutation(np.arange(rows) % folds)
