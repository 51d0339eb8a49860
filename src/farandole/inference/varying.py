"""Rows of different sizes on their way to a network: whatever they come in, and a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from farandole.data.ragged_columns import RaggedArray, to_ragged
from farandole.data.schema import check_type, is_list
from farandole.errors import InputError
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]

_PADDED_VALUES = 1 << 22
"""A network may fill up rows to the longest of them, which must not take gigabytes."""


def as_varying(name: str, column: Any, axes: int) -> Any:
    """A column whose rows differ in size, as something that `ragged_column` takes.

    >>> as_varying("x", [[1, 2], [3]], axes=1)
    <pyarrow.lib.ListArray object at ...>
    [
      [
        1,
        2
      ],
      [
        3
      ]
    ]
    """
    if isinstance(column, Ragged):
        return RaggedArray(column.values.numpy(), column.sizes.numpy())
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    if isinstance(column, torch.Tensor):
        column = column.numpy()
    if isinstance(column, np.ndarray) and column.dtype.kind not in "OS":
        return _of_one_size(name, column, axes)
    rows = list(column)
    if rows and all(isinstance(row, np.ndarray | torch.Tensor) for row in rows):
        return _of_arrays(name, [np.asarray(row) for row in rows], axes)
    try:
        return pa.array(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"Column {name!r} can't be read: {error}") from error


def ragged_column(name: str, column: Any, axes: int, *, gray: bool) -> RaggedArray:
    """Elements and sizes of a column that may be Arrow's."""
    if isinstance(column, RaggedArray):
        return column
    if isinstance(column, np.ndarray):
        return _of_one_size(name, column, axes)
    if not _is_empty(column.type):
        check_type(name, column.type, axes)
    return to_ragged(name, column, axes, gray=gray)


def _is_empty(kind: pa.DataType) -> bool:
    """Whether Arrow made this of lists that hold nothing, or of nulls."""
    while is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_null(kind))


def chunks(columns: Sequence[Array | RaggedArray], rows_at_once: int) -> Iterator[slice]:
    """The rows to give to the network at once, so that they stay small even when filled up.

    >>> long = RaggedArray(np.zeros(6_000_000), np.array([[3_000_000], [2_999_998], [1], [1]]))
    >>> list(chunks([long], rows_at_once=100))
    [slice(0, 1, None), slice(1, 2, None), slice(2, 4, None)]
    """
    start, rows = 0, len(columns[0])
    ragged = [column for column in columns if isinstance(column, RaggedArray)]
    while start < rows:
        stop = min(start + rows_at_once, rows)
        fitting = [_fitting(column, slice(start, stop)) for column in ragged]
        stop = start + max(1, min([stop - start, *fitting]))
        yield slice(start, stop)
        start = stop


def _fitting(column: RaggedArray, rows: slice) -> int:
    """How many of these rows fit, each as large as the largest of them."""
    extents = np.maximum.accumulate(column.sizes[rows], axis=0)
    width = int(np.prod(column.values.shape[1:], dtype=np.int64))
    filled = np.arange(1, len(extents) + 1) * extents.prod(axis=1) * width
    return int(np.searchsorted(filled, _PADDED_VALUES, side="right"))


def _of_one_size(name: str, array: Array, axes: int) -> RaggedArray:
    if array.ndim <= axes:
        raise InputError(
            f"Column {name!r} has shape {array.shape[1:]} a row, but the network takes rows of "
            f"at least {axes} axes."
        )
    return RaggedArray.of_array(array, axes)


def _of_arrays(name: str, rows: list[Array], axes: int) -> RaggedArray:
    inner = sorted({row.shape[axes:] for row in rows if row.size})
    if len(inner) > 1:
        raise InputError(
            f"Column {name!r} has elements of shape {inner[0]} in one row and {inner[1]} in "
            "another: they must be the same."
        )
    if min(row.ndim for row in rows) < axes:
        raise InputError(f"Column {name!r} has rows of fewer than {axes} axes.")
    return RaggedArray.of_rows(rows, axes)
