"""SIGTERM at a worker: whoever owns the machine wants it back, and leaves some seconds."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from farandole.engines.process_exit import TERMINATED
from farandole.world import Link

GRACE_SECONDS = 25.0
"""How long a worker may take to come to an end: clusters kill after 30 s by default."""


class PreemptibleLink:
    """A worker's link, which also knows whether the worker was told to end."""

    def __init__(self, link: Link, preemption: Preemption) -> None:
        self._link = link
        self._preemption = preemption

    def tell(self, message: object) -> None:
        """Send one picklable message to the driver."""
        self._link.tell(message)

    def ask(self, message: object) -> Any:
        """Send one, and wait for the driver's answer."""
        return self._link.ask(message)

    def flush(self, timeout: float = 10.0) -> None:
        """Wait, so many seconds at most, until what was told has left this process."""
        self._link.flush(timeout)

    def stop_requested(self) -> bool:
        """Whether the driver asked for an orderly end."""
        return self._link.stop_requested()

    def restart_requested(self) -> bool:
        """Whether the driver wants all workers to begin again with more."""
        return self._link.restart_requested()

    def preempted(self) -> bool:
        """Whether SIGTERM has come."""
        return self._preemption.requested


class Preemption:
    """Notes SIGTERM for the body of a `with`, for a task that looks at it.

    Only the main thread can receive signals; elsewhere this notes nothing.

    Args:
        is_looked_at: Whether the task asks `requested`; if not, SIGTERM does what it always does.
    """

    def __init__(self, is_looked_at: bool) -> None:
        self.requested = False
        self._is_looked_at = is_looked_at
        self._previous: Any = None
        self._armed = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Preemption:
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._armed = self._is_looked_at and in_main_thread
        if self._armed:
            self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._armed:
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._timer is None:
            self._timer = threading.Timer(GRACE_SECONDS, _end)
            self._timer.daemon = True
            self._timer.start()
        self.requested = True


def _end() -> None:
    """End almost as SIGTERM would have: only the main thread could take its handler away."""
    os._exit(TERMINATED)
