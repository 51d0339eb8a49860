"""What is said when a network fails: to the sender of the rows, and to whoever runs the server."""

from __future__ import annotations

import logging
from time import monotonic

from farandole.errors import InputError
from farandole.serving.refusal import Refusal, malformed, overloaded

log = logging.getLogger("farandole.serving")
PAUSE = 60.0
"""Seconds until the same kind of failure is logged again: any sender may cause it at will."""
_NO_MEMORY = ("allocate memory", "out of memory")
_logged: dict[tuple[str, type[Exception]], float] = {}


def reason(error: Exception, model: str) -> Exception:
    """What to say of a failure: what a network can't compute is the sender's to mend.

    It was tried before anything was served, and what it raises now may name files and code.

    >>> reason(MemoryError(), "flowers").status
    503
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        return malformed(str(error))
    _log(error, model)
    if is_out_of_memory(error):
        return overloaded("There isn't enough memory for this request now.")
    return malformed(f"The network can't compute this input ({type(error).__name__}).")


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory couldn't be had: torch and onnxruntime have a sentence for it, and no type.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …"))
    True
    """
    said = str(error)[:2000].lower()
    return isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)


def _log(error: Exception, model: str) -> None:
    kind, now = (model, type(error)), monotonic()
    if now - _logged.get(kind, -PAUSE) < PAUSE:
        return
    _logged[kind] = now
    log.error("model %r failed (said once a minute at most)", model, exc_info=error)
