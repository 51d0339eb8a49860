"""Whether the executors of a job answer: Spark itself gives one that is stopped two minutes."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from farandole import _spark
from farandole.errors import WorkerLost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOUND_SECONDS = 30.0
"""Within which an executor that doesn't answer is found."""
_ASLEEP_SECONDS = 5.0
"""Who asks this seldom was asleep or stopped itself, and has heard no answer for that reason."""


class ExecutorWatch:
    """Asks the executors of a tagged job, one after the other and again. Use as a context manager.

    One thread is enough: an executor that doesn't answer is the one that is waited for. Spark's
    local mode has no executors, and Spark Connect doesn't show them: nothing is asked there.
    """

    def __init__(self, session: SparkSession, tag: str, seconds: float = FOUND_SECONDS) -> None:
        self._session = session
        self._tag = tag
        self._interval = seconds / 3
        self._longest = seconds - self._interval
        self._over = threading.Event()
        self._waiting: tuple[float, int, _spark.TaskPlace] | None = None
        self._awake = self._seen = time.monotonic()

    def __enter__(self) -> ExecutorWatch:
        if not _spark.is_connect(self._session) and not _spark.is_local(self._session):
            _spark.thread(self._session, self._ask_again_and_again).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # the thread ends by itself, at the latest when Spark gives up

    def lost(self) -> WorkerLost | None:
        """The rank whose executor has not answered for too long; to be asked all the time."""
        before, self._seen = self._seen, time.monotonic()
        if self._seen - before > _ASLEEP_SECONDS:
            self._awake = self._seen
        waiting = self._waiting
        if waiting is None or self._seen - max(waiting[0], self._awake) < self._longest:
            return None
        return WorkerLost(
            waiting[1],
            f"{waiting[2]} has not answered Spark's driver for {self._longest:g} s: its JVM is "
            "stopped, overloaded or cut off. Look at its host and its log.",
        )

    def _ask_again_and_again(self) -> None:
        with suppress(Exception):  # the session was stopped, or its JVM has gone: others say so
            while not self._over.wait(self._interval):
                self._ask_all()

    def _ask_all(self) -> None:
        for rank, place in _spark.task_places(self._session, self._tag).items():
            if self._over.is_set():
                return
            self._waiting = time.monotonic(), rank, place
            _spark.ask_executor(self._session, place.executor)
            self._waiting = None
