"""Errors of ours leave a public call without our frames: a sentence, and the user's own frames.

The whole of it is kept as text in `error.full_traceback`. With FARANDOLE_FULL_TRACEBACK=1 in the
environment nothing is taken away.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from farandole.errors import FarandoleError

P = ParamSpec("P")
R = TypeVar("R")

FULL = "FARANDOLE_FULL_TRACEBACK"
_JAVA = frozenset({"py4j", "pyspark"})
_LIBRARIES = frozenset({"farandole", "torch", "pyarrow", "optuna", *_JAVA})
_calls = threading.local()
"""How many public calls this thread is inside of: the outermost one shortens."""


def short_traceback(call: Callable[P, R]) -> Callable[P, R]:
    """A decorator of a public function or method: what it raises is told shortly.

    Only errors that Farandole raises on purpose: of any other every frame may matter.

    >>> @short_traceback
    ... def half(number):
    ...     raise FarandoleError(f"number must be even. Received: number={number}")
    >>> try:
    ...     half(3)
    ... except FarandoleError as error:
    ...     print("in half" in error.full_traceback)
    True
    """

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        depth = getattr(_calls, "depth", 0)
        _calls.depth = depth + 1
        try:
            return call(*args, **kwargs)
        except FarandoleError as error:
            if depth == 0 and not is_full():
                shorten(error)
            raise
        finally:
            _calls.depth = depth

    return called


def is_full() -> bool:
    """Whether the environment asks for whole tracebacks."""
    return os.environ.get(FULL, "") not in ("", "0")


def shorten(error: FarandoleError) -> None:
    """Take all but the user's frames out of an error and what caused it; keep the whole as text."""
    error.full_traceback = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = _users(link.__traceback__)
        if link.__cause__ is not None and _top(type(link.__cause__).__module__) in _JAVA:
            link.__cause__ = None  # pages of Java, of which the sentence was made
        link.__suppress_context__ = True
        link = link.__cause__


def _users(whole: TracebackType | None) -> TracebackType | None:
    """The frames of a user's own code, and what that has called in other packages."""
    kept, is_inside = [], False
    while whole is not None:
        package = _top(whole.tb_frame.f_globals.get("__name__", ""))
        is_users = package not in _LIBRARIES and package not in sys.stdlib_module_names
        is_inside = (is_inside or is_users) and package != "farandole"
        if is_users or (is_inside and package not in _JAVA):
            kept.append(whole)
        whole = whole.tb_next
    found = None
    for one in reversed(kept):
        found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _top(module: str) -> str:
    return module.partition(".")[0]
