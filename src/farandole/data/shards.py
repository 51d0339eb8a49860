"""A worker's rows on its own disk, memory-mapped: no second store, no limit by memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from farandole.data.chunking import RowSizes
from farandole.data.columns import (
    BadColumn,
    BadRows,
    not_finite,
    rows_at_once,
    to_numpy,
    too_large,
)
from farandole.data.mapped_array import (
    MappedArray,
    MappedRaggedArray,
    RaggedColumn,
    mapped_bytes,
    scratch_folder,
)
from farandole.data.ragged_columns import RaggedArray, ragged_rows_at_once, to_ragged
from farandole.ragged import Ragged

__all__ = ["KEY", "RESIDENT_LIMIT", "Shard", "Storage", "scratch_folder", "write_shard"]

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
    """All floating-point columns are kept in the precision of the network; those of bfloat16, which
    NumPy doesn't have, in float32."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """The columns whose rows may differ in size, and along how many axes."""
    gray: bool = False
    """Whether images are kept without colors."""

    def dtype(self, array: Array) -> np.dtype[Any]:
        """Floating-point numbers take the network's precision; all else keeps its own."""
        floating = "float32" if self.floating == "bfloat16" else self.floating
        return np.dtype(floating) if array.dtype.kind == "f" else array.dtype

    def cast(self, array: Array) -> Array:
        """The array as it is kept; what is too large for its precision becomes infinite."""
        with np.errstate(over="ignore"):
            return array.astype(self.dtype(array), copy=False)


@dataclass
class Shard:
    """All rows of one worker: a tensor a column, and their keys."""

    columns: dict[str, torch.Tensor]
    keys: Array
    problems: list[BadRows] = field(default_factory=list)
    mapped_arrays: list[MappedArray | MappedRaggedArray] = field(default_factory=list)
    ragged: dict[str, RaggedColumn] = field(default_factory=dict)
    """The columns whose rows differ in size."""

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def nbytes(self) -> int:
        """The size of all columns."""
        fixed = sum(column.nbytes for column in self.columns.values())
        return fixed + sum(column.nbytes for column in self.ragged.values())

    def shape(self, name: str) -> tuple[int | None, ...]:
        """The shape of one row of a column: None for an axis that varies."""
        if name in self.ragged:
            return self.ragged[name].shape
        return tuple(self.columns[name].shape[1:])

    def row_sizes(self, rows: Array) -> list[RowSizes]:
        """How large these rows are, column by column."""
        fixed = [
            RowSizes.of_one_size(len(rows), column.shape[1:]) for column in self.columns.values()
        ]
        varying = [
            RowSizes(column.sizes.numpy()[rows], math.prod(column.values.shape[1:]))
            for column in self.ragged.values()
        ]
        return fixed + varying

    def take(self, name: str, rows: torch.Tensor | slice) -> torch.Tensor | Ragged:
        """Some rows of a column: by number, or as a slice, which copies nothing."""
        if name not in self.ragged:
            return self.take_tensor(name, rows)
        column = self.ragged[name]
        if isinstance(rows, slice):
            self._keep_to_limit()
            return column.part(rows)
        small = self.nbytes <= RESIDENT_LIMIT
        return column.take(rows, None if small else self._keep_to_limit)

    def take_tensor(self, name: str, rows: torch.Tensor | slice) -> torch.Tensor:
        """Some rows of a column that has one size.

        Touching a row maps the pages around it too, up to 2 MB of them, so those of a large
        shard are taken a few at a time, with a look at resident memory in between.
        """
        column = self.columns[name]
        if isinstance(rows, slice):
            self._keep_to_limit()
            return column[rows]
        if self.nbytes <= RESIDENT_LIMIT or len(rows) == 0:
            return column.index_select(0, rows)
        return torch.cat([self._take_some(column, some) for some in rows.split(_ROWS_AT_ONCE)])

    def _take_some(self, column: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self._keep_to_limit()
        return column.index_select(0, rows)

    def _keep_to_limit(self) -> None:
        if self.nbytes > RESIDENT_LIMIT and mapped_bytes() > RESIDENT_LIMIT:
            for array in self.mapped_arrays:
                array.release()

    def close(self) -> None:
        """Drop the tensors and the files behind them."""
        self.columns.clear()
        self.ragged.clear()
        for array in self.mapped_arrays:
            array.close()


def write_shard(batches: Iterable[pa.RecordBatch], names: Sequence[str], storage: Storage) -> Shard:
    """Drain Arrow batches into a shard, noting every row that can't be used."""
    folder = scratch_folder()
    with ExitStack() as on_failure:
        writers = [_writer(name, folder, storage) for name in names]
        for writer in writers:
            on_failure.callback(writer.target.close)
        keys = [np.empty(0, np.int64)]
        for batch in batches:
            keys.append(np.asarray(batch.column(KEY).to_numpy(zero_copy_only=False)))
            for writer in writers:
                writer.write(batch.column(writer.name))
        shard = Shard(
            {one.name: one.target.tensor() for one in writers if isinstance(one, _TensorWriter)},
            np.concatenate(keys),
            [bad for writer in writers for bad in writer.problems.found()],
            [writer.target for writer in writers],
            {one.name: one.target.tensor() for one in writers if isinstance(one, _RaggedWriter)},
        )
        on_failure.pop_all()
    return shard


def _writer(name: str, folder: str, storage: Storage) -> _TensorWriter | _RaggedWriter:
    axes = storage.axes.get(name, 0)
    if axes:
        return _RaggedWriter(name, MappedRaggedArray(folder, axes), storage)
    return _TensorWriter(name, MappedArray(folder), storage)


class _Problems:
    """Counts unusable rows of a column over all batches, by kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, BadRows] = {}

    def note(self, rows: BadRows | None) -> None:
        if rows is not None:
            self._counts[rows.problem] += rows.count
            self._first.setdefault(rows.problem, rows)

    def found(self) -> list[BadRows]:
        return [replace(self._first[key], count=count) for key, count in self._counts.items()]


class _TensorWriter:
    """Writes a column whose rows have one size."""

    def __init__(self, name: str, target: MappedArray, storage: Storage) -> None:
        self.name, self.target, self._storage = name, target, storage
        self.problems = _Problems()

    def write(self, column: pa.Array) -> None:
        for part in _parts(column, rows_at_once(column)):
            try:
                self._append(to_numpy(self.name, part))
            except BadColumn as bad:
                self.problems.note(bad.rows)

    def _append(self, array: Array) -> None:
        shape = self.target.shape_if_known()
        if shape is not None and array.shape[1:] != shape:
            example = f"shape {array.shape[1:]} where another row has {shape}"
            raise BadColumn(BadRows(self.name, "another size", len(array), example, "size"))
        stored = self._storage.cast(array)
        self.problems.note(not_finite(self.name, array) or too_large(self.name, array, stored))
        self.target.append(stored)


class _RaggedWriter:
    """Writes a column whose rows differ in size."""

    def __init__(self, name: str, target: MappedRaggedArray, storage: Storage) -> None:
        self.name, self.target, self._storage = name, target, storage
        self.problems = _Problems()

    def write(self, column: pa.Array) -> None:
        axes = self._storage.axes[self.name]
        for part in _parts(column, ragged_rows_at_once(column, axes)):
            try:
                self._append(to_ragged(self.name, part, axes, gray=self._storage.gray))
            except BadColumn as bad:
                self.problems.note(bad.rows)

    def _append(self, rows: RaggedArray) -> None:
        name, values, lengths = self.name, rows.values, rows.lengths
        shape = self.target.shape_if_known()
        if rows.has_element_shape and shape is not None and values.shape[1:] != shape:
            example = f"elements of shape {values.shape[1:]} where another row has {shape}"
            raise BadColumn(BadRows(name, "another size", int((lengths > 0).sum()), example))
        stored = self._storage.cast(values)
        found = not_finite(name, values, lengths) or too_large(name, values, stored, lengths)
        self.problems.note(found)
        self.target.append(replace(rows, values=stored))


def _parts(column: pa.Array, step: int) -> Iterator[pa.Array]:
    return (column.slice(start, step) for start in range(0, len(column), step))
