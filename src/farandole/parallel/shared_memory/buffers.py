"""Memory that the workers of one host share, and sums in it.

It is a file in memory (which the size of /dev/shm doesn't limit) or, where there is no such thing,
one on disk that has been deleted already. It has no name, so nothing stays behind: however its
processes end, it goes with the last of them.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import torch

from farandole.parallel.shared_memory.host_barrier import HostBarrier

_PAGE = mmap.PAGESIZE
_BLOCK = 256 << 10
"""Bytes to sum at a time: they stay in a core's cache until all workers' values are added."""
_READ_AT_ONCE = 2 << 20
"""Bytes that each worker may read for a sum. With more, it pays that each adds up only a share."""
_MOST_SHAPES = 64


def map_rows(descriptor: int, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """A file as a tensor; it keeps the memory, though the file may be closed.

    >>> descriptor = create_file(file_size(3, 5, torch.float64))
    >>> map_rows(descriptor, 3, 5, torch.float64).shape
    torch.Size([3, 5])
    >>> os.close(descriptor)
    """
    mapped = mmap.mmap(descriptor, file_size(rows, size, dtype))
    return torch.frombuffer(mapped, dtype=torch.uint8).view(dtype).view(rows, -1)[:, :size]


def file_size(rows: int, size: int, dtype: torch.dtype) -> int:
    """How long a file has to be for so many rows of values, each on pages of its own."""
    return rows * max(1, -(-size * dtype.itemsize // _PAGE)) * _PAGE


def create_file(length: int) -> int:
    """The descriptor of a nameless file of zeros."""
    try:
        return _file_in_memory(length)
    except (AttributeError, OSError):  # no such thing here, or too little memory
        return _file_on_disk(length)


def _file_in_memory(length: int) -> int:
    descriptor = os.memfd_create("farandole", os.MFD_CLOEXEC)
    return _allocated(descriptor, length)


def _file_on_disk(length: int) -> int:
    with tempfile.TemporaryFile() as file:
        return _allocated(os.dup(file.fileno()), length)


def _allocated(descriptor: int, length: int) -> int:
    """With all its pages: a page that can't be had later on would kill the process."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:
            os.ftruncate(descriptor, length)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class SharedRows:
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

    def first(self, size: int) -> SharedRows:
        """The same rows with fewer values."""
        return SharedRows(self._rows[:, :size], self._position)

    def sum_share(self) -> None:
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


def slot_bytes(workers: int) -> int:
    """How large a tensor for a slot may be.

    >>> slot_bytes(2), slot_bytes(8)
    (1048576, 262144)
    """
    return _READ_AT_ONCE // workers


class SharedSlots:
    """Places for small tensors, two a worker, used in turn: a sum takes a single barrier.

    Each worker writes, waits for all, and reads. Why the next sum needs no barrier before it: it
    uses the other slots. What a worker has written for one sum it overwrites two sums later, after
    the barrier in between, to which all came with their reading done.

    All add the same values in the same order, so they have the same bits.
    """

    def __init__(self, rows: torch.Tensor, barrier: HostBarrier) -> None:
        self._slots = rows.view(2, len(barrier.ranks), -1)
        self._barrier = barrier
        self._turn = 0
        self._views: dict[tuple[torch.Size, torch.dtype], list[list[torch.Tensor]]] = {}

    def sum_(self, values: torch.Tensor) -> None:
        """Sum in place."""
        mine, first, *others = self._views_like(values)[self._turn]
        self._turn = 1 - self._turn
        mine.copy_(values)
        self._barrier.wait()
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
        return [parts[self._barrier.position], *parts]
