"""SharedSlots: places in shared memory for small tensors, two a worker, used in turn."""

from __future__ import annotations

import torch

from farandole.parallel.shared_memory.circle import Circle

_READ_AT_ONCE = 2 << 20
"""Bytes that each worker may read for a sum. With more, it pays that each adds up only a share."""
_MOST_SHAPES = 64


def slot_bytes(workers: int) -> int:
    """How large a tensor may be.

    >>> slot_bytes(2), slot_bytes(8)
    (1048576, 262144)
    """
    return _READ_AT_ONCE // workers


class SharedSlots:
    """A sum with a single meeting: everybody writes, all meet, everybody reads.

    Why the next sum needs no other one: it uses the other slots. What a worker has written for one
    sum it overwrites two sums later, after the meeting in between, and to that one everybody came
    with its reading done.

    All add the same values in the same order, so they have the same bits.
    """

    def __init__(self, rows: torch.Tensor, circle: Circle) -> None:
        self._slots = rows.view(2, len(circle.ranks), -1)
        self._circle = circle
        self._turn = 0
        self._views: dict[tuple[torch.Size, torch.dtype], list[list[torch.Tensor]]] = {}

    def sum_(self, values: torch.Tensor) -> None:
        """Sum in place."""
        mine, first, *others = self._views_like(values)[self._turn]
        self._turn = 1 - self._turn
        mine.copy_(values)
        self._circle.meet()
        if not others:
            return
        torch.add(first, others[0], out=values)
        for other in others[1:]:
            values.add_(other)

    def _views_like(self, values: torch.Tensor) -> list[list[torch.Tensor]]:
        """In each turn: this worker's slot, then those of all."""
        key = values.shape, values.dtype
        found = self._views.get(key)
        if found is None:
            if len(self._views) == _MOST_SHAPES:
                self._views.clear()
            found = self._views[key] = [self._cut(slots, values) for slots in self._slots]
        return found

    def _cut(self, slots: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        parts = [slot[: values.nbytes].view(values.dtype).view(values.shape) for slot in slots]
        return [parts[self._circle.position], *parts]
