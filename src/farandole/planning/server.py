"""An asynchronous parameter server, event by event."""

from __future__ import annotations

import heapq

from farandole.planning.cluster import Cluster
from farandole.planning.stragglers import drawn

_ROUNDS = 6
"""Steps that each worker makes; the first two only fill the queues."""


def asynchronous(
    seconds: float, nbytes: float, workers: int, cluster: Cluster, servers: int = 1
) -> float:
    """Seconds between two steps of a worker that waits for nobody but a server.

    A worker computes, pushes its gradients and pulls parameters. The server's link in and its link
    out each serve one worker after the other; with several servers, each has a part.

    Args:
        seconds: what a step takes without any of that.
        nbytes: of gradients, and of parameters.
        workers: how many.
        cluster: where.
        servers: how many share the parameters.

    >>> cluster = Cluster(bandwidth=1e9, jitter=0.0, efficiency=1.0)
    >>> round(asynchronous(1.0, 1e6, 1, cluster), 3)
    1.002
    >>> round(asynchronous(1.0, 1e6, 5000, cluster), 1)  # 5,000 times 1 MB through one link
    5.0
    """
    factors = drawn((_ROUNDS, workers), cluster.jitter, seed=0)
    service = nbytes / servers / cluster.usable
    free = {"push": 0.0, "pull": 0.0}
    events = [(seconds * factors[0, worker], worker, "push", 0) for worker in range(workers)]
    heapq.heapify(events)
    ends = [[0.0] * _ROUNDS for _ in range(workers)]
    while events:
        now, worker, what, turn = heapq.heappop(events)
        free[what] = max(now + cluster.latency, free[what]) + service
        if what == "push":
            heapq.heappush(events, (free[what], worker, "pull", turn))
            continue
        ends[worker][turn] = free[what]
        if turn + 1 < _ROUNDS:
            then = free[what] + seconds * factors[turn + 1, worker]
            heapq.heappush(events, (then, worker, "push", turn + 1))
    first = 1
    return float(sum(end[-1] - end[first] for end in ends) / workers / (_ROUNDS - 1 - first))
