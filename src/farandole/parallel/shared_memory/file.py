"""Shared files: memory of several processes that has no name, so that nothing stays behind.

It is a file in memory (which the size of /dev/shm doesn't limit) or, where there is no such thing,
one on disk that has been deleted already. However its processes end, it goes with the last of them.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import torch

_PAGE = mmap.PAGESIZE


def rows_of(descriptor: int, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """A file as a tensor; it keeps the memory, though the file may be closed.

    >>> descriptor = make_file(file_bytes(3, 5, torch.float64))
    >>> rows_of(descriptor, 3, 5, torch.float64).shape
    torch.Size([3, 5])
    >>> os.close(descriptor)
    """
    mapped = mmap.mmap(descriptor, file_bytes(rows, size, dtype))
    return torch.frombuffer(mapped, dtype=torch.uint8).view(dtype).view(rows, -1)[:, :size]


def file_bytes(rows: int, size: int, dtype: torch.dtype) -> int:
    """How long a file has to be for so many rows of values, each on pages of its own."""
    return rows * max(1, -(-size * dtype.itemsize // _PAGE)) * _PAGE


def make_file(length: int) -> int:
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
