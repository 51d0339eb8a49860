"""How many tasks Spark can run at once, after a moment for executors that are on their way."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from farandole import _spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPLACEMENT_SECONDS = 60.0
"""How long to wait for Spark to replace an executor that it has lost."""
_SETTLING_SECONDS = 3.0
"""How long to wait for one more executor of a young cluster; ten times that for the first."""
_NOTICE_SECONDS = 3.0
_WATCH_SECONDS = 2.0

_most: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()
"""The most slots that each session was seen to have."""


def settled_slots(
    session: SparkSession,
    wanted: int,
    patience: float = REPLACEMENT_SECONDS,
    profile: Any = None,
) -> int:
    """How many tasks can run at once; for more than there are, a cluster gets some time.

    If the session has had the wanted slots before, it has lost executors: up to `patience` seconds
    are for Spark to replace them. If not, they will hardly come: some seconds, for a young cluster.
    """
    available = _count(session, profile=profile)
    start = changed = time.monotonic()
    told = False
    while available < wanted and not _spark.is_local(session):
        now = time.monotonic()
        lost = wanted <= _most[session]
        if now > (start + patience if lost else changed + _settling(available)):
            break
        if lost and not told and now > start + _NOTICE_SECONDS:
            told = _tell(available, wanted)
        time.sleep(1.0 if _spark.is_connect(session) else 0.2)
        before, available = available, _count(session, fresh=True, profile=profile)
        changed = changed if before == available else time.monotonic()
    return available


class SlotWatch:
    """Tells once when a session has as many slots as are wanted, while a smaller run is going on.

    Spark Connect can't be asked while all of its slots are busy: there, it never tells.
    """

    def __init__(self, session: SparkSession, wanted: int) -> None:
        self._session = session
        self._wanted = wanted
        self._next = time.monotonic()
        self._done = _spark.is_connect(session)

    def are_there(self) -> bool:
        """Whether they are there now, for the first time."""
        if self._done or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _WATCH_SECONDS
        with suppress(Exception):  # the session may be ending
            self._done = _count(self._session) >= self._wanted
        return self._done


def _count(session: SparkSession, *, fresh: bool = False, profile: Any = None) -> int:
    found = _spark.slots(session, fresh=fresh, profile=profile)
    _most[session] = max(found, _most.get(session, 0))
    return found


def _settling(available: int) -> float:
    return _SETTLING_SECONDS if available else 10 * _SETTLING_SECONDS


def _tell(available: int, wanted: int) -> bool:
    print(
        f"farandole: waiting for Spark to replace an executor: {available} of {wanted} slots.",
        file=sys.stderr,
        flush=True,
    )
    return True
