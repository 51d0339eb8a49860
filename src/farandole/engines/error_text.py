"""An exception as plain data, and back: its class, its text and its notes.

Ours come back with their fields. A user's is made of its class, if that can be imported, and of its
text alone: its `__init__` is not called.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farandole import errors
from farandole.errors import FarandoleError

_CPP_FRAMES = re.compile(
    r"\s*Exception raised from [^\n]* \(most recent call first\):\n"
    r"(?:(?:frame #\d+|<omitting python frames>)[^\n]*(?:\n|$))+"
)


@dataclass(frozen=True)
class ErrorText:
    """An exception that was raised elsewhere."""

    module: str
    name: str
    message: str
    args: list[Any] | None
    """Of one of ours, if they are plain."""
    notes: list[str]

    @classmethod
    def of(cls, error: BaseException, shortened: Callable[[str], str]) -> ErrorText:
        """Describe an exception, its texts no longer than `shortened` leaves them."""
        kind = type(error)
        single = error.args[0] if len(error.args) == 1 else None
        message = single if isinstance(single, str) else str(error)
        return cls(
            kind.__module__,
            kind.__qualname__,
            shortened(message),
            _plain(error.args) if _class_of_ours(kind.__module__, kind.__qualname__) else None,
            [shortened(str(note)) for note in getattr(error, "__notes__", [])],
        )

    def to_error(self) -> Exception | None:
        """The exception; None if its class isn't known here, or can't be made of a text."""
        try:
            error = self._ours() or self._theirs()
            str(error)  # one whose text needs what __init__ would have set is of no use
        except Exception:
            return None
        for note in self.notes:
            error.add_note(note)
        return error

    def _ours(self) -> Exception | None:
        ours = _class_of_ours(self.module, self.name)
        return ours(*self.args) if ours is not None and self.args is not None else None

    def _theirs(self) -> Exception:
        kind: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            kind = getattr(kind, part)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{self.name} is no exception")
        return kind.__new__(kind, self.message)


def without_cpp_frames(text: str) -> str:
    """A message of c10d without its C++ frames, which bury what it says.

    >>> without_cpp_frames("wait timeout\\nException raised from doWait at Store.cpp:12 "
    ...                    "(most recent call first):\\nframe #0: c10::Error + 0x98\\nnext")
    'wait timeout\\nnext'
    """
    return _CPP_FRAMES.sub("\n", text).rstrip("\n") if "Exception raised from" in text else text


def _class_of_ours(module: str, name: str) -> type[FarandoleError] | None:
    found = getattr(errors, name, None) if module == errors.__name__ else None
    return found if isinstance(found, type) and issubclass(found, FarandoleError) else None


def _plain(args: tuple[Any, ...]) -> list[Any] | None:
    try:
        plain: list[Any] = json.loads(json.dumps(args))
    except (TypeError, ValueError):
        return None
    return plain
