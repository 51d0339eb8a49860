"""One Arrow column of one batch → one NumPy array, with no Python object a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farandole.data.schema import is_bytes, is_list, is_vector
from farandole.errors import InputError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BadRows:
    """Rows that can't be used, in one column."""

    column: str
    problem: str
    count: int
    example: str
    kind: str = ""
    """What a program can tell the problem by: "null", "not finite", "outside", "fraction" …"""

    def __str__(self) -> str:
        rows = "1 row has" if self.count == 1 else f"{self.count:,} rows have"
        return f"Column {self.column!r}: {rows} {self.problem} (for example {self.example})."


class BadColumn(Exception):
    """Raised while converting; caught by the shard writer, which counts over all batches."""

    def __init__(self, rows: BadRows) -> None:
        super().__init__(rows)
        self.rows = rows


def to_numpy(name: str, column: pa.Array) -> Array:
    """The column as an array whose first dimension is the row.

    >>> to_numpy("x", pa.array([[1.0, 2.0], [3.0, 4.0]])).shape
    (2, 2)
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    _refuse_nulls(name, column)
    if isinstance(column.type, pa.FixedShapeTensorType):
        return np.asarray(column.to_numpy_ndarray())
    if is_vector(column.type):
        return _vectors(name, column)
    if is_list(column.type):
        return _lists(name, column)
    if is_bytes(column.type):
        return _bytes(name, column)
    return _numbers(name, column)


_DENSE_BYTES = 64 << 20


def rows_at_once(column: pa.Array) -> int:
    """How many rows to convert at once: sparse vectors may be far larger as dense ones."""
    if not is_vector(column.type) or len(column) == 0:
        return max(len(column), 1)
    width = pc.max(column.field("size")).as_py() or 1
    return max(1, min(len(column), _DENSE_BYTES // (8 * width)))


def _numbers(name: str, column: pa.Array) -> Array:
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.float64(), safe=False)
    if pa.types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(f"Column {name!r} holds values of type {column.type}, expected numbers.")
    array = np.asarray(column.to_numpy(zero_copy_only=True))
    return _signed(name, array) if array.dtype in _BARELY_IN_TORCH else array


_BARELY_IN_TORCH = {
    np.dtype(narrow): np.dtype(wide)
    for narrow, wide in (("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64"))
}
"""torch can hold these, and do next to nothing with them."""


def _signed(name: str, array: Array) -> Array:
    large = array > np.iinfo(np.int64).max if array.dtype == np.uint64 else np.zeros(0, bool)
    if large.any():
        example = str(array[large][0])
        raise BadColumn(BadRows(name, "a number above 2^63 - 1", int(large.sum()), example))
    return array.astype(_BARELY_IN_TORCH[array.dtype])


def _lists(name: str, column: pa.Array) -> Array:
    rows = len(column)
    if pa.types.is_fixed_size_list(column.type):
        length = column.type.list_size
    else:
        length = _common(
            name, pc.list_value_length(column).to_numpy(zero_copy_only=False), "values"
        )
    flat = column.flatten()
    if flat.null_count:
        missing = flat.is_null().to_numpy(zero_copy_only=False).reshape(rows, length).any(axis=1)
        raise BadColumn(_nulls(name, missing, "null among their values"))
    inner = to_numpy(name, flat)
    return inner.reshape(rows, length, *inner.shape[1:])


def _bytes(name: str, column: pa.Array) -> Array:
    rows = len(column)
    lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)
    length = _common(name, lengths, "bytes")
    if pa.types.is_fixed_size_binary(column.type):
        column = pc.cast(column, pa.binary())
    large = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if data is None:
        return np.zeros((rows, length), np.uint8)
    starts = np.frombuffer(offsets, np.int64 if large else np.int32)[column.offset :]
    flat = np.frombuffer(data, np.uint8)[int(starts[0]) : int(starts[0]) + rows * length]
    return flat.reshape(rows, length)


def _vectors(name: str, column: pa.Array) -> Array:
    """Spark ML vectors, dense (type 1) and sparse (type 0) in any mixture."""
    kinds, sizes, indices, values = (column.field(part) for part in _VECTOR_PARTS)
    if column.offset or len(kinds) != len(column):  # pragma: no cover - fields are sliced by Arrow
        kinds, sizes, indices, values = column.flatten()
    rows = len(column)
    sparse = kinds.to_numpy(zero_copy_only=False) == 0
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    declared = pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False)
    size = _common(name, np.where(sparse, declared, lengths), "elements")
    flat = values.flatten().to_numpy(zero_copy_only=True)
    if not sparse.any():
        return np.asarray(flat.reshape(rows, size))
    dense = np.zeros((rows, size), np.float64)
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(rows), lengths)
    position = np.arange(len(flat)) - np.repeat(starts, lengths)
    in_sparse = sparse[row]
    position[in_sparse] = indices.flatten().to_numpy(zero_copy_only=False)
    dense[row, position] = flat
    return dense


_VECTOR_PARTS = ("type", "size", "indices", "values")


def _common(name: str, lengths: Array, what: str) -> int:
    """The length that all rows have, or a complaint about those that differ from the most."""
    if len(lengths) == 0:
        return 0
    first = int(lengths[0])
    if (lengths == first).all():
        return first
    usual = int(np.bincount(lengths).argmax())
    odd = lengths != usual
    example = f"{int(lengths[odd][0])} {what} where another row has {usual}"
    raise BadColumn(BadRows(name, "another size", int(odd.sum()), example))


def _refuse_nulls(name: str, column: pa.Array) -> None:
    if column.null_count:
        raise BadColumn(_nulls(name, column.is_null().to_numpy(zero_copy_only=False), "null"))


def _nulls(name: str, missing: Array, problem: str) -> BadRows:
    first = int(np.argmax(missing))
    return BadRows(name, problem, int(missing.sum()), f"row {first} of its batch", "null")


def not_finite(name: str, array: Array) -> BadRows | None:
    """The rows with NaN or infinite values, if there are any.

    A sum is finite only if every term is, and is far cheaper than a test of each element.
    """
    if array.dtype.kind != "f" or array.size == 0:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float64)):
            return None
    bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    count = int(bad.sum())
    if count == 0:  # the sum itself overflowed
        return None
    row = array.reshape(len(array), -1)[bad][0]
    value = row[~np.isfinite(row)][0]
    return BadRows(name, "NaN or infinite values", count, str(value), "not finite")


def too_large(name: str, array: Array, stored: Array) -> BadRows | None:
    """The rows that a lower precision made infinite, if there are any."""
    if stored.dtype.itemsize >= array.dtype.itemsize:
        return None
    found = not_finite(name, stored)
    if found is None:
        return None
    example = str(array[~np.isfinite(stored)][0])
    return BadRows(name, f"values too large for {stored.dtype}", found.count, example)
