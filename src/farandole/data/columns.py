"""One Arrow column of one batch → one NumPy array, with no Python object a row."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    """What a program can tell the problem by: "null", "not finite", "size", "outside" …"""

    def __str__(self) -> str:
        rows = "1 row has" if self.count == 1 else f"{self.count:,} rows have"
        return f"Column {self.column!r}: {rows} {self.problem} (for example {self.example})."


class BadColumn(Exception):
    """Raised while converting; caught by the shard writer, which counts over all batches."""

    def __init__(self, rows: BadRows, bad: Array | None = None) -> None:
        super().__init__(rows)
        self.rows = rows
        self.bad = bad
        """True for each of the entries that can't be used, where that is known."""

    def of_lists(self, lengths: Array) -> BadColumn:
        """The same about the lists that the entries came from, which have these lengths."""
        if self.bad is None:
            return self
        lists = lists_containing(self.bad, lengths)
        example = self.rows.example
        if self.rows.kind == "null":
            example = f"row {int(np.argmax(lists))} of its batch"
        return BadColumn(replace(self.rows, count=int(lists.sum()), example=example), lists)


def lists_containing(found: Array, lengths: Array) -> Array:
    """True for each list, of these lengths one after another, with an entry where `found` is.

    >>> lists_containing(np.array([False, True, False]), np.array([1, 0, 2])).tolist()
    [False, False, True]
    """
    marked = np.repeat(np.arange(len(lengths)), lengths)[found]
    return np.bincount(marked, minlength=len(lengths)) > 0


def to_numpy(name: str, column: pa.Array) -> Array:
    """The column as an array whose first dimension is the row.

    >>> to_numpy("x", pa.array([[1.0, 2.0], [3.0, 4.0]])).shape
    (2, 2)
    """
    column = plain(column)
    refuse_nulls(name, column)
    if isinstance(column.type, pa.FixedShapeTensorType):
        return np.asarray(column.to_numpy_ndarray())
    if is_vector(column.type):
        return _vectors(name, column)
    if is_list(column.type):
        return _lists(name, column)
    if is_bytes(column.type):
        return _bytes(name, column)
    return _numbers(name, column)


def plain(column: pa.Array) -> pa.Array:
    """The column in one piece, and not as a dictionary."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


_DENSE_BYTES = 64 << 20


def rows_at_once(column: pa.Array) -> int:
    """How many rows to convert at once: sparse vectors may be far larger as dense ones."""
    if not is_vector(column.type) or len(column) == 0:
        return max(len(column), 1)
    width = pc.max(plain(column).field("size")).as_py() or 1
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
        length = _common(name, list_lengths(column), "values")
    flat = column.flatten()
    try:
        refuse_nulls(name, flat, "null among their values")
        inner = to_numpy(name, flat)
    except BadColumn as bad:
        raise bad.of_lists(np.full(rows, length)) from None
    return inner.reshape(rows, length, *inner.shape[1:])


def list_lengths(column: pa.Array) -> Array:
    """How many entries each list has; none for null."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False)).astype(np.int64)


def _bytes(name: str, column: pa.Array) -> Array:
    flat, lengths = flat_bytes(column)
    return flat.reshape(len(column), _common(name, lengths, "bytes"))


def flat_bytes(column: pa.Array) -> tuple[Array, Array]:
    """The bytes of all rows one after another, and how many each has.

    >>> flat_bytes(pa.array([b"ab", b"", b"c"]))
    (array([97, 98, 99], dtype=uint8), array([2, 0, 1]))
    """
    if pa.types.is_fixed_size_binary(column.type):
        column = pc.cast(column, pa.binary())
    large = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if data is None or len(column) == 0:
        return np.zeros(0, np.uint8), np.zeros(len(column), np.int64)
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)[column.offset :]
    ends = ends[: len(column) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], np.diff(ends)


def _vectors(name: str, column: pa.Array) -> Array:
    flat, sizes = flat_vectors(column)
    return flat.reshape(len(column), _common(name, sizes, "elements"))


def flat_vectors(column: pa.Array) -> tuple[Array, Array]:
    """The elements of Spark ML vectors one after another, and how many each vector has.

    They may be dense (type 1) and sparse (type 0) in any mixture.
    """
    kinds, declared, indices, values = (column.field(part) for part in _VECTOR_PARTS)
    if column.offset or len(kinds) != len(column):  # pragma: no cover - fields are sliced by Arrow
        kinds, declared, indices, values = column.flatten()
    sparse = kinds.to_numpy(zero_copy_only=False) == 0
    stored = list_lengths(values)
    wanted = pc.fill_null(declared, 0).to_numpy(zero_copy_only=False)
    sizes = np.where(sparse, wanted, stored).astype(np.int64)
    flat = np.asarray(values.flatten().to_numpy(zero_copy_only=True))
    if not sparse.any():
        return flat, sizes
    row = np.repeat(np.arange(len(column)), stored)
    position = np.arange(len(flat)) - np.repeat(np.cumsum(stored) - stored, stored)
    position[sparse[row]] = indices.flatten().to_numpy(zero_copy_only=False)
    dense = np.zeros(sizes.sum(), np.float64)
    dense[(np.cumsum(sizes) - sizes)[row] + position] = flat
    return dense, sizes


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
    raise BadColumn(BadRows(name, "another size", int(odd.sum()), example, "size"), odd)


def refuse_nulls(name: str, column: pa.Array, problem: str = "null") -> None:
    """Raise if there are any."""
    if column.null_count == 0:
        return
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    example = f"row {int(np.argmax(missing))} of its batch"
    raise BadColumn(BadRows(name, problem, int(missing.sum()), example, "null"), missing)


def not_finite(name: str, array: Array, lengths: Array | None = None) -> BadRows | None:
    """The rows with NaN or infinite values, if there are any.

    With `lengths` the array holds the elements of rows that have so many each. A sum is finite only
    if every term is, and is far cheaper than a test of each element.
    """
    if array.dtype.kind != "f" or array.size == 0:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float64)):
            return None
    bad = np.asarray(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
    if not bad.any():  # the sum itself overflowed
        return None
    count = int((bad if lengths is None else lists_containing(bad, lengths)).sum())
    row = array.reshape(len(array), -1)[bad][0]
    value = row[~np.isfinite(row)][0]
    return BadRows(name, "NaN or infinite values", count, str(value), "not finite")


def too_large(
    name: str, array: Array, stored: Array, lengths: Array | None = None
) -> BadRows | None:
    """The rows that a lower precision made infinite, if there are any."""
    if stored.dtype.itemsize >= array.dtype.itemsize:
        return None
    found = not_finite(name, stored, lengths)
    if found is None:
        return None
    example = str(array[~np.isfinite(stored)][0])
    return BadRows(name, f"values too large for {stored.dtype}", found.count, example)
