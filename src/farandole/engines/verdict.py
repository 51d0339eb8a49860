"""Which of several failures is the cause: workers that wait for a lost one complain as well."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from farandole.engines.failure import Failure, first_cause
from farandole.errors import PeerLost, WorkerLost

_TIMED_OUT = re.compile(r"timed? ?out", re.I)


def verdict(
    failures: Sequence[Failure],
    lost: WorkerLost | None,
    *,
    finished: Collection[int],
    size: int,
    timeout: float,
) -> Exception | None:
    """The exception to raise; None if nobody has failed.

    Args:
        failures: What workers reported, in the order of arrival.
        lost: The worker that died, got stuck or can't be reached.
        finished: Ranks that have given their results.
        size: How many workers there are.
        timeout: Seconds that a worker waits in a collective.
    """
    cause = first_cause(list(failures)) if failures else None
    if lost is not None and (cause is None or cause.lost_peer):
        return lost
    if cause is None:
        return None
    if cause.lost_peer and _TIMED_OUT.search(cause.summary):
        # Those who waited say so, but not for whom: it is who says nothing.
        silent = sorted(set(range(size)) - {f.rank for f in failures} - set(finished))
        if silent:
            return PeerLost(silent, timeout)
    return cause.to_error()
