"""Answers: what was said of the rows of one request, cut out of its batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from farandole.inference import Prediction
from farandole.serving.refusal import malformed

Array = np.ndarray[Any, Any]
BatchValues = dict[str, tuple[Array, Array | None]]
"""The outputs of a batch by name: all rows, and their lengths where those differ."""


def lengths_of(found: Prediction, name: str) -> Array | None:
    """How many positions each row of an output has, where they differ."""
    return (found[name.rpartition(".")[0]] if found.heads else found).lengths


class Answers:
    """The rows from `start` to `stop` of a batch: all outputs that somebody in it has asked for."""

    __slots__ = ("_batch", "_start", "_stop")

    def __init__(self, batch: BatchValues, start: int, stop: int) -> None:
        self._batch, self._start, self._stop = batch, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def size(self, names: Iterable[str]) -> int:
        """Bytes of these outputs as arrays."""
        return sum(self._size(*self._batch[name]) for name in names)

    def _size(self, whole: Array, lengths: Array | None) -> int:
        rows = len(self) if lengths is None else int(lengths[self._start : self._stop].sum())
        return rows * (whole.nbytes // max(len(whole), 1))

    def tensor(self, name: str) -> Array:
        """One output as an array."""
        whole, lengths = self._batch[name]
        if lengths is None:
            return whole[self._start : self._stop]
        if len(set(lengths[self._start : self._stop].tolist())) > 1:
            raise malformed(f"The rows of {name!r} differ in length: send them one by one.")
        if not len(self):
            return np.zeros((0, 0, *whole.shape[1:]), whole.dtype)
        flat = np.concatenate(self._pieces(whole, lengths))
        size = int(lengths[self._start])
        return flat.reshape(len(self), size, *flat.shape[1:])

    def by_row(self, name: str) -> Iterable[Any]:
        """One output, a value or an array a row."""
        whole, lengths = self._batch[name]
        return self.tensor(name) if lengths is None else self._pieces(whole, lengths)

    def _pieces(self, whole: Array, lengths: Array) -> list[Array]:
        ends = np.cumsum(lengths)
        return [
            whole[ends[row] - lengths[row] : ends[row]] for row in range(self._start, self._stop)
        ]
