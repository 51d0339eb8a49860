"""The driver waits for the results of workers that may fail, die or be interrupted."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from farandole.engines.base import MessageHandler
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.failure import Failure
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.interrupt import Interrupts
from farandole.engines.serialization import WorkerResult, load_result
from farandole.engines.verdict import verdict
from farandole.engines.worker import Joined
from farandole.errors import WorkerLost

_CAUSE_SECONDS = 4.0
"""After a worker lost a peer: how long to wait to hear what had happened to that peer."""
_REPORT_SECONDS = 1.0
"""How long the report of a worker that has died may take to be here."""
_DEATH_SECONDS = 0.2
"""How long the exit code of a worker that has died may take to be here."""
_RESULT_SECONDS = 10.0
"""How long a large result may take from a process that has ended to be here."""


@dataclass(frozen=True)
class Ending:
    """How the process of a worker, or its turn, has come to an end."""

    is_clean: bool
    how: str
    failure: Failure | None = None
    """What it could say another way than over its link."""


class WatchedWorker(Protocol):
    """A worker, as the driver sees it from outside."""

    place: str
    """Where it is, for who looks for it; empty where that is plain."""

    def ending(self) -> Ending | None:
        """How it has ended; None while it runs."""
        ...


class Reports:
    """A message handler that keeps what is for the collector, and hands on the rest."""

    def __init__(self, on_message: MessageHandler) -> None:
        self._on_message = on_message
        self.queue: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

    def __call__(self, rank: int, message: object) -> Any:
        """Take one message; gives what the handler of the others answers."""
        if isinstance(message, WorkerResult | Failure | Joined):
            self.queue.put((rank, message))
            return None
        return self._on_message(rank, message)


class Collector:
    """Waits for the results of all workers."""

    def __init__(
        self,
        workers: Sequence[WatchedWorker],
        reports: Reports,
        endpoint: DriverEndpoint,
        monitor: HeartbeatMonitor,
        interrupts: Interrupts,
        timeout: float,
    ) -> None:
        self._workers = workers
        self._reports = reports.queue
        self._endpoint = endpoint
        self._monitor = monitor
        self._interrupts = interrupts
        self._timeout = timeout
        self._joined: set[int] = set()
        self._results: dict[int, Any] = {}
        self._failures: list[Failure] = []
        self._lost: WorkerLost | None = None
        self._deadline: float | None = None

    def results(
        self, *, stoppable: bool, each_time: Sequence[Callable[[], None]] = ()
    ) -> list[Any]:
        """All results, by rank, or the error that is the cause.

        Args:
            stoppable: Whether Ctrl-C asks workers for an orderly end.
            each_time: What to call about ten times a second.
        """
        size = len(self._workers)
        while len(self._results) < size:
            self._receive(0.1)
            for call in each_time:
                call()
            if self._endpoint.error is not None:
                raise self._endpoint.error
            self._handle_interrupts(stoppable)
            self._check_endings()
            self._check_heartbeats()
            if self._deadline is not None and time.monotonic() > self._deadline:
                error = verdict(
                    self._failures,
                    self._lost,
                    finished=self._results,
                    size=size,
                    timeout=self._timeout,
                )
                assert error is not None, "there is a deadline only after a failure"
                raise error
        return [self._results[rank] for rank in range(size)]

    def _receive(self, seconds: float) -> None:
        try:
            rank, message = self._reports.get(timeout=seconds)
        except queue.Empty:
            return
        if isinstance(message, WorkerResult):
            self._results[rank] = load_result(rank, message.payload)
        elif isinstance(message, Failure):
            self._fail(message)
        elif isinstance(message, Joined):
            self._joined.add(rank)

    def _fail(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._give_up_in(_CAUSE_SECONDS if failure.lost_peer else 0.0)

    def _give_up_in(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._deadline = min(self._deadline or deadline, deadline)

    def _lose(self, rank: int, why: str) -> None:
        self._lost = self._lost or WorkerLost(rank, located(why, self._workers[rank].place))
        self._give_up_in(0.0)

    def _handle_interrupts(self, stoppable: bool) -> None:
        """Ask for an orderly end, where there is something to end in order: the ring is up."""
        if self._interrupts.count == 0:
            return
        while not self._reports.empty():  # that all are up may be known already
            self._receive(0.0)
        is_up = len(self._joined) == len(self._workers)
        if not (stoppable and is_up) or self._interrupts.count > 1:
            raise self._interrupts.error()
        self._endpoint.request_stop()

    def _has_reported(self, rank: int) -> bool:
        return rank in self._results or any(rank == failure.rank for failure in self._failures)

    def _check_endings(self) -> None:
        for rank, worker in enumerate(self._workers):
            if self._has_reported(rank):
                continue
            ending = worker.ending()
            if ending is None:
                continue
            # Its report may still be on the way, and surely is when it ended well.
            deadline = time.monotonic() + (_RESULT_SECONDS if ending.is_clean else _REPORT_SECONDS)
            while not self._has_reported(rank) and time.monotonic() < deadline:
                self._receive(0.1)
            if self._has_reported(rank):
                continue
            if ending.failure is not None:
                self._fail(ending.failure)
            else:
                self._lose(rank, (worker.ending() or ending).how)
            return  # one is enough: each of the others would cost as long again

    def _check_heartbeats(self) -> None:
        lost = self._monitor.lost
        if lost is None or lost.rank is None or self._has_reported(lost.rank):
            return
        deadline = time.monotonic() + _DEATH_SECONDS  # how it ended may tell more
        while self._workers[lost.rank].ending() is None:
            if time.monotonic() > deadline:
                self._lose(lost.rank, lost.summary)
                return
            time.sleep(0.02)


def located(why: str, place: str) -> str:
    """What happened to a worker, and where.

    >>> located("its process was killed (SIGKILL)", "pid 7 on node a")
    'its process (pid 7 on node a) was killed (SIGKILL)'
    """
    if not place:
        return why
    if "its process" in why:
        return why.replace("its process", f"its process ({place})", 1)
    first, line, rest = why.partition("\n")
    return f"{first} ({place}){line}{rest}"
