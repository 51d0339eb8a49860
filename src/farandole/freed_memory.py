"""What becomes of freed memory: it stays for the next step, or goes back to the system at once.

glibc keeps freed blocks of up to 32 MB for later, in a heap that fills up with holes. A network
that is whole only layer by layer is made of such blocks: half of it would stay in memory all along.

But it gives the end of that heap back whenever a few dozen MB of it are free, and what a step frees
the next one asks for again. The system then fills each page with zeros: of a small convolutional
net, that took a third of a step.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE, _USUAL = 1 << 20, 32 << 20
_USUALLY_KEPT = 64 << 20


def give_back_large_blocks(wanted: bool) -> bool:
    """Give blocks of 1 MB and more back at once, or as late as usual; whether that can be chosen.

    >>> give_back_large_blocks(True) == give_back_large_blocks(False)
    True
    """
    libc = _glibc()
    return libc is not None and bool(libc.mallopt(_MMAP_THRESHOLD, _LARGE if wanted else _USUAL))


def give_back_freed_memory() -> None:
    """Give back all that is free by now."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@contextmanager
def freed_memory_kept(most: int = 1 << 30) -> Iterator[None]:
    """Keep so many bytes of what is freed meanwhile; at the end, all of it goes back.

    >>> with freed_memory_kept():
    ...     pass  # steps that need the same memory each
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _USUAL)
    libc.mallopt(_TRIM_THRESHOLD, most)
    try:
        yield
    finally:
        libc.mallopt(_TRIM_THRESHOLD, _USUALLY_KEPT)
        give_back_freed_memory()


def _glibc() -> Any:
    """The C library, if its memory can be managed in this way."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
