"""BoundedStaleness: how far a worker may be ahead of the slowest (stale synchronous parallel)."""

from __future__ import annotations

import threading

from farandole.errors import PeerLost


class BoundedStaleness:
    """Counts updates, and holds back workers that are too far ahead of the slowest.

    >>> staleness = BoundedStaleness(workers=2, staleness=1, timeout=0.01)
    >>> staleness.tick(0)
    >>> staleness.wait(0)
    >>> staleness.lead
    1
    >>> staleness.tick(0)
    >>> staleness.wait(0)
    Traceback (most recent call last):
    ...
    farandole.errors.PeerLost: rank 1 did not come along within 0.01 s. ...
    """

    def __init__(self, workers: int, staleness: int, timeout: float) -> None:
        self.lead = 0
        """How far ahead of the slowest any worker ever was when it was let go on."""
        self._staleness = staleness
        self._timeout = timeout
        self._counts = dict.fromkeys(range(workers), 0)
        self._away: set[int] = set()
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def tick(self, worker: int) -> None:
        """A worker has made an update; if it was away, it is back."""
        with self._changed:
            self._counts[worker] += 1
            self._away.discard(worker)
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """No worker has to wait for this one until it is back."""
        with self._changed:
            self._away.add(worker)
            self._changed.notify_all()

    def reset(self) -> None:
        """Let all go on from one count: whoever is slow to begin holds the others back again."""
        with self._changed:
            self._away.clear()
            self._counts = dict.fromkeys(self._counts, max(self._counts.values()))

    def fail(self, error: BaseException) -> None:
        """Let no worker wait any more: there is no way to go on."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error is not None:
            raise self._error

    def wait(self, worker: int) -> None:
        """Until this one is at most `staleness` updates ahead of the slowest."""
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: self._error is not None or self._lead(worker) <= self._staleness,
                self._timeout,
            )
            self.check()
            if not in_time:
                raise PeerLost(self._slowest(), self._timeout)
            self.lead = max(self.lead, self._lead(worker))

    def wait_for_all(self) -> None:
        """Until all workers have left; the last may be some updates behind."""
        seconds = self._timeout * (self._staleness + 1)
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: self._error is not None or self._away == self._counts.keys(), seconds
            )
            self.check()
            if not in_time:
                raise PeerLost(sorted(self._counts.keys() - self._away), seconds)

    def _lead(self, worker: int) -> int:
        return self._counts[worker] - min(self._others_counts(worker))

    def _others_counts(self, worker: int) -> list[int]:
        """Of those who are there, with itself: alone, it is ahead of no worker."""
        return [n for other, n in self._counts.items() if other not in self._away - {worker}]

    def _slowest(self) -> list[int]:
        here = {worker: n for worker, n in self._counts.items() if worker not in self._away}
        return [worker for worker, n in here.items() if n == min(here.values())]
