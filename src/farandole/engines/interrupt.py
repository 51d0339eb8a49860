"""Ctrl-C and SIGTERM while workers run: the first asks for an orderly end, the second insists."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Counts Ctrl-C and SIGTERM for the body of a `with`, in place of raising in the middle of it.

    Only the main thread can receive signals; elsewhere this counts nothing. A handler of the user's
    own for SIGTERM stays; those that `ray.init` sets aren't the user's own.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last = signal.SIGINT
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            if not _is_users_own(signal.getsignal(signal.SIGTERM)):
                self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous or signal.SIG_DFL)

    def error(self) -> BaseException:
        """What ends this process, as the last signal would have done."""
        if self._last == signal.SIGTERM:
            return SystemExit(128 + signal.SIGTERM)
        return KeyboardInterrupt()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._last = signal.Signals(number)


@contextmanager
def kept_sigterm() -> Iterator[None]:
    """Put the handler of SIGTERM back: Ray sets one that ends this process amid a step."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _is_users_own(handler: Any) -> bool:
    module = str(getattr(handler, "__module__", ""))
    return handler is not signal.SIG_DFL and module.partition(".")[0] != "ray"
