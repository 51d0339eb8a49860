"""Arrow batches → a shard: columns are converted, checked, and written to scratch files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

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
from farandole.data.mapped_array import MappedArray, MappedRaggedArray, RaggedColumn
from farandole.data.ragged_columns import RaggedArray, ragged_rows_at_once, to_ragged
from farandole.data.schema import KEY, is_number
from farandole.data.scratch import explain_shortage, megabytes, scratch_folder
from farandole.data.shards import Shard

Array = np.ndarray[Any, Any]


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


def write_shard(batches: Iterable[pa.RecordBatch], names: Sequence[str], storage: Storage) -> Shard:
    """Drain Arrow batches into a shard, noting every row that can't be used."""
    remaining = iter(batches)
    first = list(islice(remaining, 1))
    folder, keys = scratch_folder(), [np.empty(0, np.int64)]
    writers: list[_Writer] = []
    with ExitStack() as on_failure, explain_shortage(folder, lambda: _describe(names, writers)):
        for group in _groups(names, storage, first[0].schema if first else None):
            writers.append(_writer(group, folder, storage))
            on_failure.callback(writers[-1].target.close)
        for batch in chain(first, remaining):
            keys.append(np.asarray(batch.column(KEY).to_numpy(zero_copy_only=False)))
            for writer in writers:
                writer.write(batch)
        shard = _shard(writers, names, np.concatenate(keys))
        on_failure.pop_all()
    return shard


def _groups(
    names: Sequence[str], storage: Storage, schema: pa.Schema | None
) -> list[tuple[str, ...]]:
    """The columns that share a file: those of plain numbers of one type; all others have their own.

    So there are few files, however many columns.
    """
    groups: dict[Any, list[str]] = {}
    for name in names:
        kind = None if schema is None else schema.field(name).type
        alone = kind is None or not is_number(kind) or storage.axes.get(name, 0) > 0
        key = name if alone else kind
        groups.setdefault(key, []).append(name)
    return [tuple(group) for group in groups.values()]


def _writer(group: tuple[str, ...], folder: str, storage: Storage) -> _Writer:
    axes = storage.axes.get(group[0], 0)
    if axes:
        return _RaggedWriter(group[0], MappedRaggedArray(folder, axes), storage)
    if len(group) > 1:
        return _NumbersWriter(group, MappedArray(folder), storage)
    return _TensorWriter(group[0], MappedArray(folder), storage)


def _shard(writers: Sequence[_Writer], names: Sequence[str], keys: Array) -> Shard:
    columns = {name: column for one in writers for name, column in one.columns().items()}
    problems = {name: one for writer in writers for name, one in writer.problems.items()}
    fixed, ragged = {}, {}
    for name in names:
        column = columns[name]
        if isinstance(column, RaggedColumn):
            ragged[name] = column
        else:
            fixed[name] = column
    found = [bad for name in names for bad in problems[name].found()]
    tables = {tuple(one.names): one.table for one in writers if isinstance(one, _NumbersWriter)}
    return Shard(fixed, keys, found, [writer.target for writer in writers], ragged, tables)


def _describe(names: Sequence[str], writers: Sequence[_Writer]) -> str:
    written = megabytes(sum(writer.target.nbytes for writer in writers))
    return f"the rows of a worker, in {len(names)} columns ({written} so far)"


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


class _NumbersWriter:
    """Writes columns of plain numbers of one type, side by side in one array."""

    def __init__(self, names: Sequence[str], target: MappedArray, storage: Storage) -> None:
        self.names, self.target, self._storage = names, target, storage
        self.problems = {name: _Problems() for name in names}
        self.table = torch.empty(0)
        """All of them, once they are written."""

    def write(self, batch: pa.RecordBatch) -> None:
        arrays = [self._stored(name, batch.column(name)) for name in self.names]
        usable = [array for array in arrays if array is not None]
        if usable:  # else there is nothing but problems
            table = np.zeros((batch.num_rows, len(arrays)), np.result_type(*usable))
            for number, array in enumerate(arrays):
                if array is not None:
                    table[:, number] = array
            self.target.append(table)

    def columns(self) -> dict[str, torch.Tensor]:
        self.table = self.target.tensor().reshape(-1, len(self.names))
        return {name: self.table[:, number] for number, name in enumerate(self.names)}

    def _stored(self, name: str, column: pa.Array) -> Array | None:
        problems = self.problems[name]
        try:
            array = to_numpy(name, column)
        except BadColumn as bad:
            problems.note(bad.rows)
            return None
        return _cast(name, array, self._storage, problems)


class _TensorWriter:
    """Writes a column whose rows have one size."""

    def __init__(self, name: str, target: MappedArray, storage: Storage) -> None:
        self._name, self.target, self._storage = name, target, storage
        self.problems = {name: _Problems()}

    def write(self, batch: pa.RecordBatch) -> None:
        column = batch.column(self._name)
        for part in _parts(column, rows_at_once(column)):
            try:
                self._append(to_numpy(self._name, part))
            except BadColumn as bad:
                self.problems[self._name].note(bad.rows)

    def columns(self) -> dict[str, torch.Tensor]:
        return {self._name: self.target.tensor()}

    def _append(self, array: Array) -> None:
        shape = self.target.shape_if_known()
        if shape is not None and array.shape[1:] != shape:
            example = f"shape {array.shape[1:]} where another row has {shape}"
            raise BadColumn(BadRows(self._name, "another size", len(array), example, "size"))
        self.target.append(_cast(self._name, array, self._storage, self.problems[self._name]))


class _RaggedWriter:
    """Writes a column whose rows differ in size."""

    def __init__(self, name: str, target: MappedRaggedArray, storage: Storage) -> None:
        self._name, self.target, self._storage = name, target, storage
        self.problems = {name: _Problems()}

    def write(self, batch: pa.RecordBatch) -> None:
        column, axes = batch.column(self._name), self._storage.axes[self._name]
        for part in _parts(column, ragged_rows_at_once(column, axes)):
            try:
                self._append(to_ragged(self._name, part, axes, gray=self._storage.gray))
            except BadColumn as bad:
                self.problems[self._name].note(bad.rows)

    def columns(self) -> dict[str, RaggedColumn]:
        return {self._name: self.target.tensor()}

    def _append(self, rows: RaggedArray) -> None:
        name, values, lengths = self._name, rows.values, rows.lengths
        shape = self.target.shape_if_known()
        if rows.has_element_shape and shape is not None and values.shape[1:] != shape:
            example = f"elements of shape {values.shape[1:]} where another row has {shape}"
            raise BadColumn(BadRows(name, "another size", int((lengths > 0).sum()), example))
        stored = _cast(name, values, self._storage, self.problems[name], lengths)
        self.target.append(replace(rows, values=stored))


_Writer = _NumbersWriter | _TensorWriter | _RaggedWriter


def _cast(
    name: str, array: Array, storage: Storage, problems: _Problems, lengths: Array | None = None
) -> Array:
    """The array as it is kept; notes what isn't a finite number, or no longer one."""
    stored = storage.cast(array)
    problems.note(not_finite(name, array, lengths) or too_large(name, array, stored, lengths))
    return stored


def _parts(column: pa.Array, step: int) -> Iterator[pa.Array]:
    return (column.slice(start, step) for start in range(0, len(column), step))
