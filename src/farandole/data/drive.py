"""Growing arrays on disk, which come back as tensors over the mapped files.

Files are unlinked as soon as they are open, so that nothing can be left behind, not even
by a process that is killed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO, Any

import numpy as np
import torch

from farandole.data.ragged_columns import RaggedArray
from farandole.data.ragged_tensor import RaggedTensor

Array = np.ndarray[Any, Any]


class Drive:
    """One growing array on disk."""

    def __init__(self, folder: str) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.rows = 0
        self._map: mmap.mmap | None = None

    def shape_if_known(self) -> tuple[int, ...] | None:
        """The shape of a row, once there is one."""
        return None if self.dtype is None else self.shape

    def append(self, array: Array) -> None:
        """Add rows at the end."""
        self.dtype, self.shape = array.dtype, array.shape[1:]
        _write_all(self._file, np.ascontiguousarray(array))
        self.rows += len(array)

    def tensor(self) -> torch.Tensor:
        """All rows as one tensor over the mapped file."""
        dtype = self.dtype or np.dtype("float32")
        size = self.rows * int(np.prod(self.shape, dtype=np.int64)) * dtype.itemsize
        if size == 0:
            return torch.from_numpy(np.empty((self.rows, *self.shape), dtype))
        self._map = mmap.mmap(self._file.fileno(), size)
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


class RaggedDrive:
    """Growing rows of different sizes: their elements, their sizes and where each begins."""

    def __init__(self, folder: str, axes: int) -> None:
        self._values, self._sizes, self._starts = (Drive(folder) for _ in range(3))
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

    def tensor(self) -> RaggedTensor:
        """All rows over the mapped files."""
        sizes = self._sizes.tensor().reshape(-1, self._axes).long()
        return RaggedTensor(self._values.tensor(), sizes, self._starts.tensor().long())

    def release(self) -> None:
        """Give resident pages back."""
        for drive in (self._values, self._sizes, self._starts):
            drive.release()

    def close(self) -> None:
        """Close the files."""
        for drive in (self._values, self._sizes, self._starts):
            drive.close()


def scratch_folder() -> str:
    """Where shards live: Spark's own scratch disk on an executor, else the temporary folder."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return folder
    return tempfile.gettempdir()


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
