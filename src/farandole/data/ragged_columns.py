"""One Arrow column whose rows differ in size → two NumPy arrays, with no Python object a row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.data.columns import (
    BadColumn,
    BadRows,
    flat_bytes,
    flat_vectors,
    list_lengths,
    plain,
    refuse_nulls,
    rows_at_once,
    to_numpy,
)
from farandole.data.image_decoding import decode_column, decode_structs, images_at_once
from farandole.data.schema import is_bytes, is_image, is_vector

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RaggedArray:
    """The twin of `farandole.ragged.Ragged` in NumPy."""

    values: Array
    sizes: Array

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def lengths(self) -> Array:
        """How many elements each row has."""
        return np.asarray(self.sizes.prod(axis=1))

    @property
    def has_element_shape(self) -> bool:
        """Whether the shape of an element is known: no list tells the size of lists inside it
        unless there is one."""
        return len(self.values) > 0 or self.values.ndim == 1

    def __getitem__(self, rows: slice) -> RaggedArray:
        """Rows that stand next to each other, without a copy."""
        first, last, _ = rows.indices(len(self))
        begin, end = self._ends[first], self._ends[last]
        return RaggedArray(self.values[begin:end], self.sizes[first:last])

    @cached_property
    def _ends(self) -> Array:
        """Where each row begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @classmethod
    def of_array(cls, array: Array, axes: int) -> RaggedArray:
        """Rows that all have one size."""
        sizes = np.tile(np.array(array.shape[1 : 1 + axes], np.int64), (len(array), 1))
        count = len(array) * int(np.prod(array.shape[1 : 1 + axes], dtype=np.int64))
        return cls(array.reshape(count, *array.shape[1 + axes :]), sizes)

    @classmethod
    def of_rows(cls, rows: list[Array], axes: int) -> RaggedArray:
        """Rows that are arrays of their own.

        >>> RaggedArray.of_rows([np.zeros((2, 3)), np.zeros((1, 5))], axes=2).sizes.tolist()
        [[2, 3], [1, 5]]
        """
        sizes = np.array([row.shape[:axes] for row in rows], np.int64).reshape(len(rows), axes)
        flat = [row.reshape(-1, *row.shape[axes:]) for row in rows if row.size]
        return cls(np.concatenate(flat) if flat else np.zeros(0), sizes)


def to_ragged(name: str, column: pa.Array, axes: int, *, gray: bool = False) -> RaggedArray:
    """The column as elements and sizes, where the first `axes` axes of a row vary.

    Encoded images and those of Spark's reader come in color, unless they are to be `gray`.

    >>> words = to_ragged("x", pa.array([[5, 6, 7], [], [8]]), axes=1)
    >>> words.values.tolist(), words.sizes.tolist()
    ([5, 6, 7, 8], [[3], [0], [1]])
    """
    column = plain(column)
    refuse_nulls(name, column)
    if is_image(column.type):
        return RaggedArray(*decode_structs(name, column, gray=gray))
    if is_bytes(column.type) and axes == 2:
        return RaggedArray(*decode_column(name, column, gray=gray))
    return _nested(name, column, axes)


def ragged_rows_at_once(column: pa.Array, axes: int) -> int:
    """How many rows to convert at once: those that need no more than some megabytes."""
    if is_bytes(column.type) and axes == 2 and len(column):
        return images_at_once(column)
    return rows_at_once(column)


def _nested(name: str, column: pa.Array, axes: int) -> RaggedArray:
    column = plain(column)
    rows = len(column)
    if pa.types.is_null(column.type) and rows == 0:  # what nothing but empty lists hold
        return RaggedArray(np.zeros(0), np.zeros((0, axes), np.int64))
    if axes == 0 or isinstance(column.type, pa.FixedShapeTensorType):
        return RaggedArray.of_array(to_numpy(name, column), axes)
    if is_vector(column.type) or is_bytes(column.type):
        flat, lengths = (flat_vectors if is_vector(column.type) else flat_bytes)(column)
        return RaggedArray(flat, lengths.reshape(rows, 1))
    lengths = list_lengths(column)
    try:
        entries = column.flatten()
        refuse_nulls(name, entries, "null among their values")
        inner = _nested(name, entries, axes - 1)
    except BadColumn as bad:
        found = bad.of_lists(lengths)
        # Of elements it is that they differ, for which there is no other network.
        raise BadColumn(replace(found.rows, kind=found.rows.kind.replace("size", ""))) from None
    return RaggedArray(inner.values, _rectangular(name, lengths, inner.sizes))


def _rectangular(name: str, lengths: Array, inner: Array) -> Array:
    """The sizes of rows that have so many lines each, of these sizes."""
    first = np.zeros((len(lengths), inner.shape[1]), np.int64)
    full = lengths > 0
    first[full] = inner[(np.cumsum(lengths) - lengths)[full]]
    wanted = np.repeat(first, lengths, axis=0)
    odd = (wanted != inner).any(axis=1)
    if odd.any():
        row = np.repeat(np.arange(len(lengths)), lengths)[odd]
        example = f"{inner[odd][0].tolist()} where the line before has {wanted[odd][0].tolist()}"
        raise BadColumn(BadRows(name, "lines of different lengths", len(np.unique(row)), example))
    return np.concatenate([lengths[:, None], first], axis=1)
