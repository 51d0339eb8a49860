"""An asynchronous parameter server, event by event."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from farandole.planning.cluster import Cluster, draw_jitter

_ROUNDS, _FIRST = 4, 1
"""Steps that each worker makes; what comes before the end of the first one only fills queues."""


def asynchronous_step(
    seconds: float, nbytes: float, workers: int, cluster: Cluster, servers: int = 1
) -> float:
    """Seconds between two steps of a worker that waits for servers only.

    A worker computes, pushes to each server its part of the gradients, and gets that part of the
    parameters back. Servers live beside the first workers. Each host's link in and its link out
    serve one message after the other, those of its worker and those of its server.

    Args:
        seconds: what a step takes without any of that.
        nbytes: of gradients, and of parameters.
        workers: how many.
        cluster: where.
        servers: how many share the parameters.

    >>> cluster = Cluster(bandwidth=1e9, jitter=0.0, efficiency=1.0)
    >>> round(asynchronous_step(1.0, 1e6, 2, cluster), 3)  # one of two has 2 ms of transfers
    1.001
    >>> round(asynchronous_step(1.0, 1e6, 5000, cluster), 1)  # 4,999 times 1 MB through one link
    5.0
    """
    return _Workers(seconds, nbytes, workers, cluster, servers).run()


class _Event(NamedTuple):
    time: float
    number: int
    """Of two at the same time, the older one comes first."""
    arrives: bool
    """At the link in of where it goes; else it comes to the link out of where it is."""
    is_push: bool
    worker: int
    server: int


class _Workers:
    def __init__(
        self, seconds: float, nbytes: float, workers: int, cluster: Cluster, servers: int
    ) -> None:
        self._workers, self._servers, self._cluster = workers, servers, cluster
        self._computing = seconds * draw_jitter((_ROUNDS, workers), cluster.jitter, seed=0)
        part = nbytes / servers
        self._service = part / cluster.usable
        self._inside = cluster.local_latency + part / cluster.local_bandwidth
        self._out, self._in = ([0.0] * cluster.hosts(workers) for _ in range(2))
        self._awaited = [servers] * workers
        self._ends: list[list[float]] = [[] for _ in range(workers)]
        self._events: list[_Event] = []
        self._number = 0

    def run(self) -> float:
        """Go on until all workers have made all rounds."""
        for worker in range(self._workers):
            self._push(float(self._computing[0, worker]), worker)
        while self._events:
            event = heapq.heappop(self._events)
            if event.arrives:
                host = (event.server if event.is_push else event.worker) // self._cluster.per_host
                self._in[host] = max(event.time, self._in[host]) + self._service
                self._delivered(self._in[host], event)
            else:
                self._leave(event)
        spans = [ends[-1] - ends[_FIRST - 1] for ends in self._ends]
        return sum(spans) / self._workers / (_ROUNDS - _FIRST)

    def _add(self, time: float, arrives: bool, is_push: bool, worker: int, server: int) -> None:
        self._number += 1
        event = _Event(time, self._number, arrives, is_push, worker, server)
        heapq.heappush(self._events, event)

    def _push(self, time: float, worker: int) -> None:
        for server in range(self._servers):
            self._add(time, False, True, worker, server)

    def _leave(self, event: _Event) -> None:
        time, per_host = event.time, self._cluster.per_host
        ends = event.worker // per_host, event.server // per_host
        if ends[0] == ends[1]:
            inside = self._inside if event.worker != event.server else 0.0
            self._delivered(time + inside, event)
            return
        host = ends[0] if event.is_push else ends[1]
        begin = max(time, self._out[host])
        self._out[host] = begin + self._service
        self._add(begin + self._cluster.latency, True, event.is_push, event.worker, event.server)

    def _delivered(self, time: float, event: _Event) -> None:
        worker = event.worker
        if event.is_push:  # the server answers
            self._add(time, False, False, worker, event.server)
            return
        self._awaited[worker] -= 1
        if self._awaited[worker]:
            return
        self._awaited[worker] = self._servers
        ends = self._ends[worker]
        ends.append(time)
        if len(ends) < _ROUNDS:
            self._push(time + float(self._computing[len(ends), worker]), worker)
