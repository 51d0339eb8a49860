"""A word to those who wait: until all of a barrier stage fits, Spark says nothing."""

from __future__ import annotations

import sys
import time

LATE_SECONDS = 15.0


class LateNotice:
    """Tells, once, that no worker has come within `seconds`. The wait goes on.

    >>> LateNotice(2, seconds=60).look(connected=0)
    False
    """

    def __init__(self, workers: int, seconds: float | None = None) -> None:
        self._workers = workers
        self._due = time.monotonic() + (LATE_SECONDS if seconds is None else seconds)
        self._done = False

    def look(self, connected: int) -> bool:
        """Whether the notice was given now, `connected` being how many workers have come."""
        self._done = self._done or connected > 0
        if self._done or time.monotonic() < self._due:
            return False
        self._done = True
        print(
            f"farandole: still waiting for {self._workers} workers to start; are all of Spark's "
            "slots busy? (Or they can't reach this driver: `farandole doctor` tells.)",
            file=sys.stderr,
            flush=True,
        )
        return True
