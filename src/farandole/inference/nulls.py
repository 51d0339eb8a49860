"""Rows that can't be predicted for: found, named, or left out and put back as nulls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.data import BadRows, is_list, list_lengths, lists_containing
from farandole.errors import InputError

Array = np.ndarray[Any, Any]

NULLS = ("error", "null")


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
            what = [] if rows.kind == "null" else [rows.example]
            rows = replace(rows, example=", ".join([*what, where]))
        advice = "Drop or fill them before predicting"
        null = ', or let nulls="null" answer them with null' if self.rows.kind == "null" else ""
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


def restore_nulls(answers: pa.Array, missing: Array) -> pa.Array:
    """The answers for the rows that aren't missing, with nulls in between.

    >>> restore_nulls(pa.array([5, 6]), np.array([False, True, False])).to_pylist()
    [5, None, 6]
    """
    places = np.cumsum(~missing) - 1
    return answers.take(pa.array(places, pa.int64(), mask=missing))
