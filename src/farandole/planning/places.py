"""Places: some columns of an array, taken as fast as their order allows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
"""A row for each size, a column for each worker, host or transfer."""
Indices = npt.NDArray[np.int64]


class Places:
    """Columns of an array with `width` of them.

    The neighbours in a ring are all columns, turned by one; the last workers of hosts are each n-th
    column. Slices are several times faster than a list of places, and a ring has many steps.

    >>> rows = np.array([[1.0, 2.0, 3.0]])
    >>> Places(np.array([1, 2, 0]), 3).take(rows).tolist()
    [[2.0, 3.0, 1.0]]
    """

    def __init__(self, indices: Indices, width: int) -> None:
        self.indices = indices
        self.once = len(indices) == 0 or int(np.bincount(indices).max()) <= 1
        """Whether no column is there twice."""
        self._parts = _slices(indices, width)

    def take(self, rows: Times) -> Times:
        """These columns, in this order. Not to be written to: it may be a view."""
        if self._parts is None:
            return rows.take(self.indices, axis=1, mode="clip")
        if len(self._parts) == 1:
            return rows[:, self._parts[0]]
        return np.concatenate([rows[:, part] for part in self._parts], axis=1)

    def put(self, rows: Times, values: Times) -> None:
        """Set these columns; each may be there once only."""
        if self._parts is None:
            rows[:, self.indices] = values
            return
        start = 0
        for part in self._parts:
            into = rows[:, part]
            into[...] = values[:, start : start + into.shape[1]]
            start += into.shape[1]

    def raise_to(self, rows: Times, values: Times) -> None:
        """Let these columns be at least so large."""
        if self._parts is None and not self.once:
            for row, one in zip(rows, values, strict=True):
                np.maximum.at(row, self.indices, one)
        elif self._parts is None:
            rows[:, self.indices] = np.maximum(self.take(rows), values)
        else:
            start = 0
            for part in self._parts:
                into = rows[:, part]
                np.maximum(into, values[:, start : start + into.shape[1]], out=into)
                start += into.shape[1]


def _slices(indices: Indices, width: int) -> list[slice] | None:
    """The same columns as one slice, or as two where all of them are turned round."""
    if len(indices) == 0:
        return [slice(0, 0)]
    first = int(indices[0])
    if len(indices) == width and np.array_equal(indices, (np.arange(width) + first) % width):
        return [slice(first, width), slice(0, first)] if first else [slice(0, width)]
    apart = int(indices[1]) - first if len(indices) > 1 else 1
    if apart > 0 and bool((np.diff(indices) == apart).all()):
        return [slice(first, int(indices[-1]) + 1, apart)]
    return None
