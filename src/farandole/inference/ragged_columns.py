"""Columns whose rows differ in size: whatever they come in, and a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from farandole.data import (
    ARROW_ERRORS,
    RaggedArray,
    RowSizes,
    check_type,
    chunk_rows,
    is_list,
    to_ragged,
)
from farandole.errors import InputError
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]


def as_ragged(name: str, column: Any, axes: int) -> Any:
    """A column whose rows differ in size, as something that `ragged_column` takes.

    >>> as_ragged("x", [[1, 2], [3]], axes=1)
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
    except ARROW_ERRORS as error:
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


def row_chunks(columns: Sequence[Array | RaggedArray], rows_at_once: int) -> Iterator[slice]:
    """The rows to give to the network at once, so that they stay small even when filled up."""
    return chunk_rows([_extents(column) for column in columns], rows_at_once)


def _extents(column: Array | RaggedArray) -> RowSizes:
    if isinstance(column, RaggedArray):
        return RowSizes(column.sizes, math.prod(column.values.shape[1:]))
    return RowSizes.of_one_size(len(column), column.shape[1:])


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
