"""Answers: what was said of the rows of one request, cut out of its batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from farandole.inference import Prediction
from farandole.serving.refusal import malformed

Array = np.ndarray[Any, Any]


class Answers:
    """The rows from `start` to `stop` of a batch: all outputs that somebody in it has asked for."""

    __slots__ = ("_found", "_start", "_stop", "_values")

    def __init__(self, found: Prediction, values: dict[str, Any], start: int, stop: int) -> None:
        self._found, self._values = found, values
        self._start, self._stop = start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def tensor(self, name: str) -> Array:
        """One output as an array."""
        lengths = self._lengths(name)
        if lengths is None:
            values: Array = self._whole(name)[self._start : self._stop]
            return values
        if len(set(lengths.tolist())) > 1:
            raise malformed(f"The rows of {name!r} differ in length: send them one by one.")
        flat = np.concatenate([*self._pieces(name, lengths)]) if len(self) else self._whole(name)
        return flat.reshape(len(self), -1, *flat.shape[1:])

    def by_row(self, name: str) -> Iterable[Any]:
        """One output, a value or an array a row."""
        lengths = self._lengths(name)
        return self.tensor(name) if lengths is None else self._pieces(name, lengths)

    def _pieces(self, name: str, lengths: Array) -> list[Array]:
        ends = np.cumsum(self._all_lengths(name))
        whole = self._whole(name)
        return [
            whole[ends[row] - length : ends[row]]
            for row, length in zip(range(self._start, self._stop), lengths, strict=True)
        ]

    def _lengths(self, name: str) -> Array | None:
        lengths = self._all_lengths(name)
        return None if lengths is None else lengths[self._start : self._stop]

    def _all_lengths(self, name: str) -> Any:
        head = name.rpartition(".")[0]
        found = self._found[head] if self._found.heads else self._found
        return found.lengths

    def _whole(self, name: str) -> Array:
        whole: Array = self._values[name]
        return whole
