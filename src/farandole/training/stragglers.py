"""Stragglers: workers that compute far more slowly than the others, who wait for them.

A straggler is reported and never ended: its part of each batch is as good as any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

_LEAST_TIMES = 3.0
_LEAST_SECONDS = 5.0
"""By so much it has to be slower, in an epoch, before that is worth a line."""


@dataclass(frozen=True)
class Straggler:
    """A worker, and how many times as long as others it takes for a row."""

    rank: int
    times: float


class StragglerWatch:
    """Adds up what a worker computes; the sums of an epoch travel with those of its metrics.

    Args:
        rank: Of this worker.
        size: How many workers there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._seconds = self._rows = 0.0
        self._known: set[int] = set()
        self.found: list[Straggler] = []
        """Those that the last epoch has brought to light, each only once."""

    def add(self, seconds: float, rows: int) -> None:
        """Count so many rows, and the seconds of forward and backward passes over them."""
        self._seconds += seconds
        self._rows += rows

    def reduce(
        self, reduce_sums: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor
    ) -> torch.Tensor:
        """Sum `values` over all workers, and what all have counted with them."""
        mine = torch.zeros(2, self._size, dtype=values.dtype)
        mine[0, self._rank], mine[1, self._rank] = self._seconds, self._rows
        self._seconds = self._rows = 0.0
        summed = reduce_sums(torch.cat([values, mine.reshape(-1)]))
        seconds, rows = summed[len(values) :].reshape(2, -1).tolist()
        self.found = [one for one in stragglers(seconds, rows) if one.rank not in self._known]
        self._known.update(one.rank for one in self.found)
        return summed[: len(values)]


def stragglers(seconds: Sequence[float], rows: Sequence[float]) -> list[Straggler]:
    """The workers that took far more seconds a row than the median of the others.

    >>> stragglers([2.0, 2.2, 20.0], [100, 100, 100])
    [Straggler(rank=2, times=9.523809523809524)]
    """
    rates = {rank: seconds[rank] / count for rank, count in enumerate(rows) if count > 0}
    found = []
    for rank, rate in rates.items():
        others = [other for peer, other in rates.items() if peer != rank]
        usual = median(others) if others else rate
        excess = seconds[rank] - usual * rows[rank]
        if usual > 0 and rate > _LEAST_TIMES * usual and excess > _LEAST_SECONDS:
            found.append(Straggler(rank, rate / usual))
    return found
