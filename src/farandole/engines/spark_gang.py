"""Workers as ordinary tasks that all have to be there: where Spark refuses barrier stages.

With dynamic allocation Spark starts executors for tasks that wait, and runs no barrier stage. So
the tasks register with the driver instead, which tells each of them where the others are, or ends
the job if some of them don't come. Spark runs a failed task again, and a slow one twice: whoever
comes second under a rank is sent away, since its rows have been fed and its ring has been joined.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from farandole.engines.authenticated_listener import listen
from farandole.engines.encryption import Credentials
from farandole.engines.store import AuthenticatedStore, connect_store, serve_store
from farandole.errors import LaunchError, NotEnoughSlots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 300.0
"""How long the tasks that have come wait for the others."""
STARTED_AGAIN = "was started again"
_CONNECT_SECONDS = 30.0
_NO_LIMIT = 2**31 - 1
_REGISTERED, _PLACE = "registered/", "place/"


@dataclass(frozen=True)
class GangAddress:
    """Where the tasks of a run register, and how long they wait for the others."""

    host: str
    port: int
    size: int
    seconds: float


class Gang:
    """The driver's side: who has come? Use as a context manager."""

    def __init__(self, host: str, credentials: Credentials, size: int, seconds: float) -> None:
        self._listener = listen(host)
        self._credentials = credentials
        own_host, port = self._listener.getsockname()
        self.address = GangAddress(own_host, port, size, seconds)
        self._first: float | None = None
        self._complete = False

    def __enter__(self) -> Gang:
        self._store = serve_store(self._listener, self._credentials, _CONNECT_SECONDS, _notice)
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def missing(self) -> NotEnoughSlots | None:
        """The error, if the tasks that came have waited long enough for the others."""
        size, seconds = self.address.size, self.address.seconds
        here = size if self._complete else self._count()
        self._complete = here == size
        if self._complete or here == 0:  # rows that are still on their way have no limit
            return None
        self._first = self._first or time.monotonic()
        if time.monotonic() - self._first < seconds:
            return None
        return NotEnoughSlots(
            size,
            here,
            f"{here} of {size} workers had started {seconds:g} s after the first, so the job was "
            "cancelled: Spark gave the others no executor. Use fewer workers, raise "
            "spark.dynamicAllocation.maxExecutors, or wait longer for a busy cluster: "
            "engine=SparkEngine(start_timeout=…).",
        )

    @property
    def has_begun(self) -> bool:
        """Whether a worker has come."""
        return self._count() > 0

    def _count(self) -> int:
        return sum(self._store.check([f"{_PLACE}{rank}"]) for rank in range(self.address.size))


class GangMember:
    """A task's side: it registers once, and learns where the others are."""

    def __init__(
        self, address: GangAddress, credentials: Credentials, rank: int, task_id: int
    ) -> None:
        self._address = address
        self._rank = rank
        self._store = _connected(address, credentials)
        mine = str(task_id).encode()
        if self._store.compare_set(f"{_REGISTERED}{rank}", b"", mine) != mine:
            self.close()
            raise LaunchError(f"rank {rank} {STARTED_AGAIN} by Spark: it has joined this run once.")

    def all_gather(self, message: str) -> list[str]:
        """The messages of all tasks, in the order of their ranks; waits until all have come."""
        self._store.set(f"{_PLACE}{self._rank}", message)
        keys = [f"{_PLACE}{rank}" for rank in range(self._address.size)]
        # The driver gives up first, and with a better word for it.
        wait = timedelta(seconds=self._address.seconds + 60)
        return [each.decode() for each in self._store.multi_get(keys, wait)]

    def close(self) -> None:
        """Hang up."""
        self._store.close()


def check_speculation(session: SparkSession) -> None:
    """Raise if Spark would run copies of slow workers: no setting of a stage prevents it."""
    if str(session.conf.get("spark.speculation", "false")).lower() == "true":
        raise LaunchError(
            "Spark runs copies of slow tasks here (spark.speculation=true), and a worker can't "
            "have one. Start the session with spark.speculation=false, or without dynamic "
            "allocation."
        )


def most_slots(session: SparkSession, cpus: int) -> float:
    """How many tasks dynamic allocation can ever make room for, as far as settings tell."""
    executors = str(session.conf.get("spark.dynamicAllocation.maxExecutors", "infinity"))
    cores = session.conf.get("spark.executor.cores", None)
    known = executors.isdigit() and int(executors) < _NO_LIMIT and cores is not None
    return int(executors) * (int(cores or 0) // cpus) if known else math.inf


def _connected(address: GangAddress, credentials: Credentials) -> AuthenticatedStore:
    try:
        return connect_store((address.host, address.port), credentials, _CONNECT_SECONDS)
    except OSError as error:
        raise LaunchError(
            f"This worker can't reach the driver at {address.host}:{address.port} ({error}), and "
            "with dynamic allocation workers find each other there. Set spark.driver.host to an "
            "address that executors can reach, and open its ports."
        ) from error


def _notice(text: str) -> None:
    print(f"farandole: {text}", file=sys.stderr, flush=True)
