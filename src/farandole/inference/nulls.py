"""Rows that can't be predicted for: found, named, or left out and put back as nulls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farandole.data import BadRows, is_list, is_vector, list_lengths, lists_containing
from farandole.errors import InputError

Array = np.ndarray[Any, Any]

NULLS = ("error", "null")
MISSING = (*NULLS, "nan")
"""What to do about rows with a null or NaN among their numbers."""
NULLS_DOC = (
    "'error' names the first row with a null or NaN, 'null' answers it with null, 'nan' lets NaN "
    "go through the network"
)


class UnusableInput(InputError):
    """Rows that can't be predicted for."""

    def __init__(self, rows: BadRows, row: int | None = None, place: str = "") -> None:
        super().__init__(rows, row, place)
        self.rows = rows
        self.row = row
        """Where the first of them stands, counted from 0."""
        self.place = place

    def at(self, offset: int, place: str) -> UnusableInput:
        """The same, counted from `offset` rows before."""
        return UnusableInput(self.rows, None if self.row is None else self.row + offset, place)

    def with_names(self, names: Sequence[str]) -> UnusableInput:
        """The same with the names of the columns, where only their numbers were known."""
        numbered = {f"argument {number + 1}": name for number, name in enumerate(names)}
        rows = replace(self.rows, column=numbered.get(self.rows.column, self.rows.column))
        return UnusableInput(rows, self.row, self.place)

    def __str__(self) -> str:
        rows = self.rows
        if self.row is not None:
            where = f"row {self.row:,}{self.place or ' of its batch'}"
            what = [] if rows.kind in ("null", "nan") else [rows.example]
            rows = replace(rows, example=", ".join([*what, where]))
        advice = "Drop or fill them before predicting"
        missing = self.rows.kind in ("null", "nan")
        null = ', or let nulls="null" answer them with null' if missing else ""
        return f"{rows} {advice}{null}."


def null_rows(columns: Sequence[Any]) -> Array | None:
    """True for each row with a null in any column, or in a list of one; None if there is none.

    >>> null_rows([pa.array([1.0, None]), pa.array([[1], [2]])])
    array([False,  True])
    >>> null_rows([pa.array([[1], [None, 2]])])
    array([False,  True])
    """
    found = [mask for column in columns if (mask := _null_entries(column)) is not None]
    return np.logical_or.reduce(found) if found else None


def _null_entries(column: Any) -> Array | None:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        return None
    own = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if not is_list(column.type):
        return own
    inner = _null_entries(column.flatten())
    if inner is None:
        return own
    lists = lists_containing(inner, list_lengths(column))
    return lists if own is None else lists | own


def nan_rows(column: Any) -> Array | None:
    """True for each row with a NaN in it; None if there is none.

    >>> nan_rows(pa.array([[1.0], [2.0, float("nan")]]))
    array([False,  True])
    """
    if isinstance(column, np.ndarray):
        flat = column.reshape(len(column), -1) if column.dtype.kind == "f" else None
        return None if flat is None or not _has_nan(flat) else np.asarray(np.isnan(flat).any(1))
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not isinstance(column, pa.Array):
        return None
    if is_vector(column.type):
        return nan_rows(column.field("values"))
    if is_list(column.type):
        inner = nan_rows(column.flatten())
        return None if inner is None else lists_containing(inner, list_lengths(column))
    if not pa.types.is_floating(column.type):
        return None
    if column.null_count:  # of which NumPy would make NaN
        return np.asarray(pc.fill_null(pc.is_nan(column), False)) if _any_nan(column) else None
    values: Array = column.to_numpy(zero_copy_only=False)
    return np.asarray(np.isnan(values)) if _has_nan(values) else None


def _has_nan(values: Array) -> bool:
    """A sum is NaN where a term is: far cheaper than a test of each; of infinities it may be."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(values.sum(dtype=np.float64))) and bool(np.isnan(values).any())


def _any_nan(column: pa.Array) -> bool:
    return bool(pc.any(pc.is_nan(column)).as_py())


def restore_nulls(answers: pa.Array, missing: Array) -> pa.Array:
    """The answers for the rows that aren't missing, with nulls in between.

    >>> restore_nulls(pa.array([5, 6]), np.array([False, True, False])).to_pylist()
    [5, None, 6]
    """
    places = np.cumsum(~missing) - 1
    return answers.take(pa.array(places, pa.int64(), mask=missing))
