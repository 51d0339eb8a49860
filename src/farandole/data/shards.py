"""A worker's rows on its own disk, memory-mapped: no second store, no limit by memory.

Files are unlinked as soon as they are open, so that nothing can be left behind, not even
by a process that is killed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import IO, Any

import numpy as np
import pyarrow as pa
import torch

from farandole.data.columns import (
    BadColumn,
    BadRows,
    not_finite,
    rows_at_once,
    to_numpy,
    too_large,
)

Array = np.ndarray[Any, Any]
KEY = "__farandole_key"
"""The column by which rows are placed and ordered: a content hash or a position."""

RESIDENT_LIMIT = 512 << 20
"""Mapped pages that a worker keeps resident before it gives them back to the page cache."""

_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Storage:
    """How fields are kept on disk."""

    floating: str = "float32"
    """All floating-point columns are kept in the precision of the network."""

    def dtype(self, array: Array) -> np.dtype[Any]:
        """Floating-point numbers take the network's precision; all else keeps its own."""
        return np.dtype(self.floating) if array.dtype.kind == "f" else array.dtype

    def cast(self, array: Array) -> Array:
        """The array as it is kept; what is too large for its precision becomes infinite."""
        with np.errstate(over="ignore"):
            return array.astype(self.dtype(array), copy=False)


class Drive:
    """One growing array on disk."""

    def __init__(self, folder: str) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.rows = 0
        self._map: mmap.mmap | None = None

    def shape_if_known(self) -> tuple[int, ...] | None:
        """The shape of a row, once there is one."""
        return None if self.dtype is None else self.shape

    def append(self, array: Array) -> None:
        """Add rows at the end."""
        self.dtype, self.shape = array.dtype, array.shape[1:]
        _write_all(self._file, np.ascontiguousarray(array))
        self.rows += len(array)

    def tensor(self) -> torch.Tensor:
        """All rows as one tensor over the mapped file."""
        if self.dtype is None or self.rows == 0:
            return torch.empty((0, *self.shape))
        size = self.rows * int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        if size == 0:
            return torch.empty((self.rows, *self.shape))
        self._map = mmap.mmap(self._file.fileno(), size)
        if hasattr(mmap, "MADV_RANDOM"):  # no read-ahead: rows are visited in random order
            self._map.madvise(mmap.MADV_RANDOM)
        array = np.frombuffer(self._map, self.dtype).reshape(self.rows, *self.shape)
        return torch.from_numpy(array)

    def release(self) -> None:
        """Give resident pages back; they stay in the page cache while there is room."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the file; the mapping goes with the last tensor over it."""
        self._file.close()


@dataclass
class Shard:
    """All rows of one worker: a tensor a column, and their keys."""

    columns: dict[str, torch.Tensor]
    keys: Array
    problems: list[BadRows] = field(default_factory=list)
    drives: list[Drive] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def nbytes(self) -> int:
        """The size of all columns."""
        return sum(column.nbytes for column in self.columns.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one row of a column."""
        return tuple(self.columns[name].shape[1:])

    def take(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Some rows of a column.

        Touching a row maps the pages around it too, up to 2 MB of them, so those of a large
        shard are taken a few at a time, with a look at resident memory in between.
        """
        column = self.columns[name]
        if self.nbytes <= RESIDENT_LIMIT or len(rows) == 0:
            return column.index_select(0, rows)
        return torch.cat([self._take_some(column, some) for some in rows.split(_ROWS_AT_ONCE)])

    def _take_some(self, column: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if _mapped_bytes() > RESIDENT_LIMIT:
            for drive in self.drives:
                drive.release()
        return column.index_select(0, rows)

    def close(self) -> None:
        """Drop the tensors and the files behind them."""
        self.columns.clear()
        for drive in self.drives:
            drive.close()


def write_shard(batches: Iterable[pa.RecordBatch], names: Sequence[str], storage: Storage) -> Shard:
    """Drain Arrow batches into a shard, noting every row that can't be used."""
    folder = scratch_folder()
    with ExitStack() as on_failure:
        drives = {name: Drive(folder) for name in names}
        for drive in drives.values():
            on_failure.callback(drive.close)
        keys, problems = _drain(batches, drives, storage)
        columns = {name: drive.tensor() for name, drive in drives.items()}
        on_failure.pop_all()
    return Shard(columns, keys, problems, list(drives.values()))


def _drain(
    batches: Iterable[pa.RecordBatch], drives: Mapping[str, Drive], storage: Storage
) -> tuple[Array, list[BadRows]]:
    keys: list[Array] = [np.empty(0, np.int64)]
    problems = _Problems()
    for batch in _slices(batches, drives):
        keys.append(np.asarray(batch.column(KEY).to_numpy(zero_copy_only=False)))
        for name, drive in drives.items():
            known = drive.shape_if_known()
            array = problems.convert(name, batch.column(name), known, storage)
            if array is not None:
                drive.append(array)
    return np.concatenate(keys), problems.found()


def _slices(batches: Iterable[pa.RecordBatch], names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        step = min(rows_at_once(batch.column(name)) for name in names)
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


class _Problems:
    """Counts unusable rows over all batches, by column and kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], BadRows] = {}

    def convert(
        self, name: str, column: pa.Array, shape: tuple[int, ...] | None, storage: Storage
    ) -> Array | None:
        try:
            array = to_numpy(name, column)
        except BadColumn as bad:
            self._note(bad.rows)
            return None
        if shape is not None and array.shape[1:] != shape:
            example = f"shape {array.shape[1:]} where another row has {shape}"
            self._note(BadRows(name, "another size", len(array), example))
            return None
        stored = storage.cast(array)
        bad_rows = not_finite(name, array) or too_large(name, array, stored)
        if bad_rows is not None:
            self._note(bad_rows)
        return stored

    def _note(self, rows: BadRows) -> None:
        self._counts[rows.column, rows.problem] += rows.count
        self._first.setdefault((rows.column, rows.problem), rows)

    def found(self) -> list[BadRows]:
        return [replace(self._first[key], count=count) for key, count in self._counts.items()]


def scratch_folder() -> str:
    """Where shards live: Spark's own scratch disk on an executor, else the temporary folder."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return folder
    return tempfile.gettempdir()


def _write_all(file: IO[bytes], array: Array) -> None:
    view = memoryview(array.reshape(-1).view(np.uint8).data) if array.size else memoryview(b"")
    while len(view):  # an unbuffered write may be partial
        view = view[file.write(view) :]


def _mapped_bytes() -> int:
    """Resident bytes of this process that belong to files; 0 where that can't be known."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0
