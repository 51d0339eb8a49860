"""What a worker does in run_many: take the next trial, run it, tell of it. And its rows."""

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
from farandole.data import ParquetSource, TableSource, local_source
from farandole.engines import Engine, SparkEngine
from farandole.world import World

_LOOK_SECONDS = 0.1
"""How often rank 0 looks whether its peers still need it."""


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
class Began:
    """Told before a trial runs: if its worker dies, the driver knows of what."""

    number: int


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


def everywhere(data: Any, engine: Engine, stack: ExitStack) -> Copy | None:
    """Put the rows where every worker can map them."""
    if data is None:
        return None
    source = local_source(data.toArrow() if _spark.is_dataframe(data) else data, shuffle=True)
    if isinstance(source, ParquetSource):
        local = "://" not in source.path
        return Copy(os.path.abspath(source.path) if local else source.path, parquet=True)
    assert isinstance(source, TableSource)
    if isinstance(engine, SparkEngine) and not _is_near(engine.session):
        path = _kept(source)
        _spark.distribute(engine.session, path)
        return Copy(os.path.basename(path), distributed=True)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="farandole-"))
    path = os.path.join(folder, "rows.arrow")
    source.mapped(path)
    return Copy(path)


def _is_near(session: Any) -> bool:
    """Whether the session's workers see the files of this process."""
    return _spark.is_local(session) and not _spark.is_connect(session)


def _kept(source: TableSource) -> str:
    """A file of the rows, named by its content, that stays until this process ends.

    Spark fetches it again for every executor that comes later, and knows it by its name.
    """
    folder = _folder()
    path = os.path.join(folder, "rows.arrow")
    source.mapped(path)
    with open(path, "rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()
    named = os.path.join(folder, f"farandole-{name}.arrow")
    os.replace(path, named)
    return named


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="farandole-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
    for place in _next(len(job.trials), world):
        trial = job.trials[place]
        world.link.tell(Began(trial.number))
        world.link.flush()
        trial = replace(_tried(job, trial, table), rank=world.rank)
        world.link.tell(trial)
        done.append(trial)
    return done


def _next(count: int, world: World) -> Iterator[int]:
    """Places in the list that no other worker has."""
    if world.size == 1:
        yield from range(count)
        return
    store = dist.distributed_c10d._get_default_store()
    while (place := store.add("farandole/trials", 1) - 1) < count:
        yield place
    store.add("farandole/trials/over", 1)
    # The store lives in rank 0. A peer may ask it again after hours, so nothing here has a limit:
    # if that peer dies instead, the engine ends this worker too.
    while world.is_leader and store.add("farandole/trials/over", 0) < world.size:
        time.sleep(_LOOK_SECONDS)


def _tried(job: Job, trial: Trial, table: pa.Table | None) -> Trial:
    start = time.perf_counter()
    _sow(job.seed + trial.number)
    try:
        value = job.fn(*_tables(table, trial.fold, job), **trial.options)
        pickle.loads(cloudpickle.dumps(value))  # what can't travel is this trial's own failure
        return replace(trial, value=value, seconds=time.perf_counter() - start)
    except (Exception, SystemExit) as error:
        return replace(
            trial,
            error=f"{type(error).__name__}: {error}",
            traceback=traceback.format_exc(),
            seconds=time.perf_counter() - start,
        )


def _sow(seed: int) -> None:
    """Seed torch, Python and NumPy's global generator, which takes 32 bits."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


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
