"""Ctrl-C while workers run: the first asks for an orderly end, the second insists."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Counts Ctrl-C for the body of a `with`, in the place of raising in the middle of things.

    Only the main thread can receive signals; elsewhere this counts nothing.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: Any = None
        self._armed = False

    def __enter__(self) -> Interrupts:
        self._armed = threading.current_thread() is threading.main_thread()
        if self._armed:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._armed:
            signal.signal(signal.SIGINT, self._previous or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
