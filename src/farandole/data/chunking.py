"""Rows cut into chunks that fit in memory even where a network pads them: pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PADDED_VALUES = 1 << 22
"""A network may pad rows to the longest of them, and makes a multiple of that in its layers, which
must not take gigabytes."""


@dataclass(frozen=True)
class RowSizes:
    """How large the rows of a column are."""

    sizes: Array
    """(rows, axes): how far each reaches along the axes that vary, of which there may be none."""
    width: int
    """How many values each of its elements has."""

    @classmethod
    def of_one_size(cls, rows: int, shape: Sequence[int]) -> RowSizes:
        """Rows that are all of this shape: one element each."""
        return cls(np.empty((rows, 0), np.int64), math.prod(shape))

    def rows_that_fit(self, rows: slice) -> int:
        """How many of these rows fit, each padded to the largest of them."""
        if self.sizes.shape[1] == 0:
            return min(len(self.sizes[rows]), PADDED_VALUES // max(self.width, 1))
        largest = np.maximum.accumulate(self.sizes[rows], axis=0)
        padded = np.arange(1, len(largest) + 1) * largest.prod(axis=1) * self.width
        return int(np.searchsorted(padded, PADDED_VALUES, side="right"))


def chunk_rows(columns: Sequence[RowSizes], max_rows: int) -> Iterator[slice]:
    """The rows to give to a network at once: in order, at most `max_rows`, and at least one.

    >>> long = RowSizes(np.array([[3_000_000], [2_999_998], [1], [1]]), width=1)
    >>> list(chunk_rows([long], max_rows=100))
    [slice(0, 1, None), slice(1, 2, None), slice(2, 4, None)]
    """
    start, rows = 0, len(columns[0].sizes)
    while start < rows:
        candidate = slice(start, min(start + max_rows, rows))
        count = max(1, min(column.rows_that_fit(candidate) for column in columns))
        yield slice(start, start + count)
        start += count
