"""Large blocks of memory go back to the system as soon as they are free.

glibc keeps freed blocks of up to 32 MB for later, in a heap that fills up with holes. A network
that is whole only layer by layer is made of such blocks: half of it would stay in memory all along.
"""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD = -3  # of malloc.h
_LARGE, _USUAL = 1 << 20, 32 << 20


def give_back_large_blocks(wanted: bool) -> bool:
    """Give blocks of 1 MB and more back at once, or as late as usual; whether that can be chosen.

    >>> give_back_large_blocks(True) == give_back_large_blocks(False)
    True
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE if wanted else _USUAL))
