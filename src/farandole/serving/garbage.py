"""What a server does with memory: what is loaded stays, and what requests free is used again."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager

from farandole.freed_memory import freed_memory_kept, give_back_freed_memory

_KEPT = 256 << 20


def memory_for_requests() -> AbstractContextManager[None]:
    """While requests are answered: what one has freed, the next one gets."""
    return freed_memory_kept(_KEPT)


def spare_collections() -> None:
    """Let the garbage collector pass over all that is loaded by now.

    A walk over the objects of torch and the models takes longer than an answer may.
    """
    gc.unfreeze()  # of an earlier call: models that are served no longer
    gc.collect()
    give_back_freed_memory()
    gc.freeze()
