"""Rows cut into chunks that stay small even where a network fills them up: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PADDED_VALUES = 1 << 22
"""A network may fill up rows to the longest of them, and makes a multiple of that in its layers,
which must not take gigabytes."""


@dataclass(frozen=True)
class Extents:
    """How large the rows of a column are."""

    sizes: Array
    """(rows, axes): how far each reaches along the axes that vary, of which there may be none."""
    width: int
    """How many values each of its elements has."""

    @classmethod
    def of_one_size(cls, rows: int, shape: Sequence[int]) -> Extents:
        """Rows that are all of this shape: one element each."""
        return cls(np.empty((rows, 0), np.int64), values_in(shape))

    def fitting(self, rows: slice) -> int:
        """How many of these rows fit, each as large as the largest of them."""
        largest = np.maximum.accumulate(self.sizes[rows], axis=0)
        filled = np.arange(1, len(largest) + 1) * largest.prod(axis=1) * self.width
        return int(np.searchsorted(filled, PADDED_VALUES, side="right"))


def values_in(shape: Sequence[int]) -> int:
    """How many values an array of this shape has."""
    return int(np.prod(shape, dtype=np.int64))


def chunks(columns: Sequence[Extents], rows_at_once: int) -> Iterator[slice]:
    """The rows to give to a network at once: in order, at most so many, and at least one.

    >>> long = Extents(np.array([[3_000_000], [2_999_998], [1], [1]]), width=1)
    >>> list(chunks([long], rows_at_once=100))
    [slice(0, 1, None), slice(1, 2, None), slice(2, 4, None)]
    """
    start, rows = 0, len(columns[0].sizes)
    while start < rows:
        tried = slice(start, min(start + rows_at_once, rows))
        count = max(1, min(column.fitting(tried) for column in columns))
        yield slice(start, start + count)
        start += count
