"""Growing arrays in scratch files, which come back as tensors over the memory-mapped files.

They grow by writing, never by touching a mapped page: on a full disk that would kill the process.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import torch

from farandole.data.ragged_columns import RaggedArray
from farandole.data.scratch import scratch_file
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]


class MappedArray:
    """One growing array in a file."""

    def __init__(self, folder: str) -> None:
        self._file = scratch_file(folder)
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.rows = 0
        self._map: mmap.mmap | None = None

    def shape_if_known(self) -> tuple[int, ...] | None:
        """The shape of a row, once there is one."""
        return None if self.dtype is None else self.shape

    def append(self, array: Array) -> None:
        """Add rows at the end, all of one type: what is in the file is bytes."""
        if self.rows and len(array) and array.dtype != self.dtype:
            raise TypeError(f"Rows of {array.dtype} came after rows of {self.dtype} in one column.")
        if not self.rows:
            self.dtype, self.shape = array.dtype, array.shape[1:]
        self.rows += len(array)
        _write_all(self._file, np.ascontiguousarray(array))

    @property
    def nbytes(self) -> int:
        """How much there was to write."""
        size = 0 if self.dtype is None else self.dtype.itemsize
        return self.rows * int(np.prod(self.shape, dtype=np.int64)) * size

    def tensor(self) -> torch.Tensor:
        """All rows as one tensor over the mapped file."""
        dtype = self.dtype or np.dtype("float32")
        if self.nbytes == 0:
            return torch.from_numpy(np.empty((self.rows, *self.shape), dtype))
        self._map = mmap.mmap(self._file.fileno(), self.nbytes)
        self._file.close()  # the mapping has a file handle of its own: one a column is enough
        if hasattr(mmap, "MADV_RANDOM"):  # no read-ahead: rows are visited in random order
            self._map.madvise(mmap.MADV_RANDOM)
        array = np.frombuffer(self._map, dtype).reshape(self.rows, *self.shape)
        return torch.from_numpy(array)

    def release(self) -> None:
        """Give resident pages back; they stay in the page cache while there is room."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the file; the mapping goes with the last tensor over it."""
        self._file.close()


class MappedRaggedArray:
    """Growing rows of different sizes: their elements, their sizes and where each begins."""

    def __init__(self, folder: str, axes: int) -> None:
        self._values, self._sizes, self._starts = (MappedArray(folder) for _ in range(3))
        self._axes = axes
        self._known = False

    def shape_if_known(self) -> tuple[int, ...] | None:
        """The shape of an element, once there is one."""
        return self._values.shape if self._known else None

    def append(self, rows: RaggedArray) -> None:
        """Add rows at the end."""
        lengths = rows.lengths
        self._starts.append(self._values.rows + np.cumsum(lengths) - lengths)
        self._sizes.append(rows.sizes)
        if rows.has_element_shape:
            self._values.append(rows.values)
            self._known = True
        elif not self._known:
            self._values.append(np.empty(0, rows.values.dtype))

    @property
    def nbytes(self) -> int:
        """How much there was to write."""
        return self._values.nbytes + self._sizes.nbytes + self._starts.nbytes

    def tensor(self) -> RaggedColumn:
        """All rows over the mapped files."""
        sizes = self._sizes.tensor().reshape(-1, self._axes).long()
        return RaggedColumn(self._values.tensor(), sizes, self._starts.tensor().long())

    def release(self) -> None:
        """Give resident pages back."""
        for array in (self._values, self._sizes, self._starts):
            array.release()

    def close(self) -> None:
        """Close the files."""
        for array in (self._values, self._sizes, self._starts):
            array.close()


def mapped_bytes() -> int:
    """Resident bytes of this process that belong to files; 0 where that can't be known."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


def _write_all(file: IO[bytes], array: Array) -> None:
    view = memoryview(array.reshape(-1).view(np.uint8).data) if array.size else memoryview(b"")
    while len(view):  # an unbuffered write may be partial
        view = view[file.write(view) :]


_ELEMENTS_AT_ONCE = 1 << 14
"""Rows beyond this are faster to copy one by one than to gather by an index of their elements."""


@dataclass(frozen=True)
class RaggedColumn:
    """Rows of different sizes, as in `Ragged`, with the place where each begins."""

    values: torch.Tensor
    sizes: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, rows: Ragged) -> RaggedColumn:
        """The same rows, ready to be taken from."""
        return cls(rows.values, rows.sizes, rows.starts)

    @property
    def nbytes(self) -> int:
        """The size of all that is kept."""
        return int(self.values.nbytes + self.sizes.nbytes + self.starts.nbytes)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one row: None for each axis that varies."""
        return (*(None for _ in range(self.sizes.shape[1])), *self.values.shape[1:])

    def extremes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of the row with the fewest elements and of that with the most."""
        lengths = self.sizes.prod(1)
        few, many = self.sizes[lengths.argmin()], self.sizes[lengths.argmax()]
        return tuple(few.tolist()), tuple(many.tolist())

    def part(self, rows: slice) -> Ragged:
        """Rows that stand next to each other, without a copy of their elements.

        >>> words = Ragged.of([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5])])
        >>> RaggedColumn.of(words).part(slice(1, 3)).values.tolist()
        [3, 4, 5]
        """
        first, last, _ = rows.indices(len(self.sizes))
        sizes = self.sizes[first:last]
        if len(sizes) == 0:
            return Ragged(self.values[:0], sizes)
        end = int(self.starts[last - 1]) + int(sizes[-1].prod())
        return Ragged(self.values[int(self.starts[first]) : end], sizes)

    def take(self, rows: torch.Tensor, before_each: Callable[[], None] | None = None) -> Ragged:
        """Any rows, in this order; `before_each` is called before each piece of their elements.

        >>> words = Ragged.of([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5])])
        >>> RaggedColumn.of(words).take(torch.tensor([2, 0])).values.tolist()
        [4, 5, 1, 2]
        """
        sizes, starts = self.sizes.index_select(0, rows), self.starts.index_select(0, rows)
        lengths = sizes.prod(1)
        ends = lengths.cumsum(0)
        pieces = []
        # Short rows together by an index of their elements, a long one by itself as a slice.
        _, counts = ((ends - lengths) // _ELEMENTS_AT_ONCE).unique_consecutive(return_counts=True)
        for some in torch.arange(len(rows)).split(counts.tolist()):
            if before_each is not None:
                before_each()
            pieces.append(self._elements(starts[some], lengths[some]))
        return Ragged(torch.cat(pieces) if pieces else self.values[:0], sizes)

    def _elements(self, starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if len(starts) == 1:
            return self.values[int(starts) : int(starts + lengths)]
        total = int(lengths.sum())
        shift = starts - (lengths.cumsum(0) - lengths)
        index = torch.arange(total) + shift.repeat_interleave(lengths, output_size=total)
        return self.values.index_select(0, index)
