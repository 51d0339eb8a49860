"""Ctrl-C and SIGTERM while workers run: the first asks for an orderly end, the second insists."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Counts Ctrl-C and SIGTERM for the body of a `with`, in place of raising in the middle of it.

    Only the main thread can receive signals; elsewhere this counts nothing. A handler of the user's
    own for SIGTERM stays.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last = signal.SIGINT
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
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
