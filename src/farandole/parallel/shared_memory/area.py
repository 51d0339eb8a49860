"""SharedArea: a tensor of each worker of a host and their sum, in shared memory."""

from __future__ import annotations

import torch

_BLOCK = 256 << 10
"""Bytes to sum at a time: they stay in a core's cache until all workers' values are added."""


class SharedArea:
    """A row of values for each worker of a host, and one more for their sum."""

    def __init__(self, rows: torch.Tensor, position: int) -> None:
        self._rows = rows
        self._position = position
        self.mine = rows[position]
        self.sum = rows[-1]
        self._blocks: list[list[torch.Tensor]] = []

    @property
    def size(self) -> int:
        """How many values each worker has."""
        return self._rows.shape[1]

    def first(self, size: int) -> SharedArea:
        """The same area for fewer values."""
        return SharedArea(self._rows[:, :size], self._position)

    def add_up(self) -> None:
        """Sum this worker's share of all values, in the order of workers."""
        self._blocks = self._blocks or self._cut()
        for total, first, *others in self._blocks:
            if not others:
                total.copy_(first)
                continue
            torch.add(first, others[0], out=total)
            for other in others[1:]:
                total.add_(other)

    def _cut(self) -> list[list[torch.Tensor]]:
        """Of the share: where the sum goes, then each worker's values, a block at a time."""
        workers = self._rows.shape[0] - 1
        start, end = (self.size * (self._position + more) // workers for more in (0, 1))
        block = max(1, _BLOCK // self._rows.element_size())
        parts = self._rows[:, start:end].split(block, dim=1) if end > start else ()
        return [[part[-1], *part[:-1]] for part in parts]
