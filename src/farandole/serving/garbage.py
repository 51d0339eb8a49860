"""What the garbage collector passes over in a server: all that is loaded."""

from __future__ import annotations

import gc


def spare_collections() -> None:
    """Let the garbage collector pass over all that is loaded by now.

    A walk over the objects of torch and the models takes longer than an answer may.
    """
    gc.unfreeze()  # of an earlier call: models that are served no longer
    gc.collect()
    gc.freeze()
