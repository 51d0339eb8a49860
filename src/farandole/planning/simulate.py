"""Simulation of a schedule: how long a sum over all workers takes.

The schedules are those of `farandole.parallel`, the very objects that workers execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from farandole.parallel import Schedule, Step, schedules
from farandole.planning.cluster import Cluster
from farandole.planning.links import Links

LARGE = 1e9
SIZES = (1e6, 25e6, LARGE)
"""Bytes for which schedules are simulated where nobody says what is needed."""


@dataclass(frozen=True)
class TimeByBytes:
    """Seconds that depend on bytes: known for some sizes, straight between them and beyond.

    >>> (TimeByBytes((0.0, 10.0), (1.0, 6.0)) + TimeByBytes((0.0, 10.0), (1.0, 1.0)))(20)
    12.0
    """

    sizes: tuple[float, ...] = (0.0, 1.0)
    seconds: tuple[float, ...] = (0.0, 0.0)

    def __call__(self, nbytes: float) -> float:
        """Give the seconds for so many bytes."""
        last = 1
        while last < len(self.sizes) - 1 and nbytes > self.sizes[last]:
            last += 1
        start, end = self.sizes[last - 1], self.sizes[last]
        low, high = self.seconds[last - 1], self.seconds[last]
        return low + (high - low) * (nbytes - start) / (end - start)

    def __add__(self, other: TimeByBytes) -> TimeByBytes:
        sizes = tuple(sorted({*self.sizes, *other.sizes}))
        return TimeByBytes(sizes, tuple(self(size) + other(size) for size in sizes))


@dataclass(frozen=True)
class CollectiveCost:
    """How long a sum over all workers takes, and what it sends."""

    reduce: TimeByBytes
    """Until the last has added something."""
    gather: TimeByBytes
    """From there until all have all sums."""
    sent: float = 0.0
    """Bytes that the busiest worker sends, for each byte that is summed."""

    @property
    def whole(self) -> TimeByBytes:
        """Both together."""
        return self.reduce + self.gather

    def then(self, other: CollectiveCost) -> CollectiveCost:
        """This one around another: first its sum, then the other, then its answer."""
        reduce, gather = self.reduce + other.reduce, self.gather + other.gather
        return CollectiveCost(reduce, gather, self.sent + other.sent)


def ring_collective(
    workers: int, cluster: Cluster, sizes: tuple[float, ...] = SIZES
) -> CollectiveCost:
    """Our ring, workers of a host next to each other; that of gloo and nccl, too.

    >>> cluster = Cluster(bandwidth=1e9, latency=1e-5, efficiency=1.0)
    >>> round(ring_collective(4, cluster).whole(4e6), 5)  # 6 × (10 µs + 1 MB at 1 GB/s)
    0.00606
    """
    return _ring(workers, cluster.wires, () if cluster.per_host == 1 else sizes)


def server_collective(
    workers: int, cluster: Cluster, servers: int = 1, sizes: tuple[float, ...] = SIZES
) -> CollectiveCost:
    """Parameter servers, a synchronous round of push and pull; a server's link is a queue.

    >>> cluster = Cluster(bandwidth=1e9, latency=1e-5, efficiency=1.0)
    >>> round(server_collective(5, cluster).whole(1e6), 5)  # 4 in, 4 out, one after the other
    0.00802
    """
    return _servers(workers, cluster.wires, min(servers, workers), sizes)


def hierarchical_collective(workers: int, cluster: Cluster) -> CollectiveCost:
    """What `allreduce` does on CPUs: workers of a host sum through memory, one of each in a ring.

    >>> cluster = Cluster(bandwidth=1e9, per_host=4, efficiency=1.0)
    >>> ring_among_2 = ring_collective(2, Cluster(bandwidth=1e9, efficiency=1.0)).whole(1e6)
    >>> hierarchical_collective(8, cluster).whole(1e6) > ring_among_2
    True
    """
    inside = simulate(shared_memory(min(workers, cluster.per_host)), cluster)
    outside = ring_collective(cluster.hosts(workers), replace(cluster, per_host=1))
    # What goes through memory is no byte on the wire.
    return CollectiveCost(inside.reduce, inside.gather).then(outside)


def swap_seconds(workers: int, cluster: Cluster, nbytes: float) -> float:
    """Until every worker has its own share of what each other worker has (all-to-all).

    All of a host's workers send to all others at once, so its link is what counts.

    >>> cluster = Cluster(bandwidth=1e9, latency=1e-5, efficiency=1.0)
    >>> round(swap_seconds(5, cluster, 5e6), 5)  # 4 messages of 1 MB
    0.00401
    """
    near = min(workers, cluster.per_host)
    one = nbytes / workers
    inside = (near - 1) * (cluster.local_latency + one / cluster.local_bandwidth)
    if near == workers:
        return inside
    return max(inside, cluster.latency + near * (workers - near) * one / cluster.usable)


@lru_cache(maxsize=256)
def _ring(workers: int, cluster: Cluster, sizes: tuple[float, ...]) -> CollectiveCost:
    return simulate(schedules.ring(workers), cluster, sizes)


@lru_cache(maxsize=256)
def _servers(
    workers: int, cluster: Cluster, servers: int, sizes: tuple[float, ...]
) -> CollectiveCost:
    return simulate(schedules.parameter_server(workers, servers), cluster, sizes)


def shared_memory(workers: int) -> Schedule:
    """Workers of one host: each reads its share of all workers' values, then copies all sums.

    Either way that is the whole tensor once, which goes from memory to memory and to nobody else.

    >>> [step.adds for step in shared_memory(2).steps()]
    [True, False]
    """
    all_of_them = np.arange(workers if workers > 1 else 0)
    chunks = np.zeros_like(all_of_them)
    steps = [Step(all_of_them, all_of_them, chunks, adds=adds) for adds in (True, False)]
    return Schedule("shared-memory", workers, 1, lambda: iter(steps))


def simulate(schedule: Schedule, cluster: Cluster, sizes: Sequence[float] = ()) -> CollectiveCost:
    """Carry out a schedule on a cluster, from a common start, for several sizes at once.

    Where all transfers take the same kind of way, time is a straight line over bytes, and two sizes
    are enough. Where some stay within a host, these are hidden behind others from some size on, so
    each size that matters has to be simulated.

    Args:
        schedule: who sends what to whom.
        cluster: where.
        sizes: bytes of the tensors that matter; none where the line is straight.
    """
    known = tuple(sorted({0.0, *(sizes or (LARGE,))}))
    links = Links(cluster, schedule.workers, np.array(known)[:, None] / schedule.chunks)
    reduced, adds = np.zeros(len(known)), False
    for step in schedule.steps():
        if adds and not step.adds:
            reduced = links.ready.max(1)
        links.carry(step)
        adds = step.adds
    done = links.ready.max(1)
    reduced = done if adds else reduced
    sent = float(links.sent().max()) / schedule.chunks
    reduce, gather = (
        TimeByBytes(known, tuple(map(float, ends))) for ends in (reduced, done - reduced)
    )
    return CollectiveCost(reduce, gather, sent)
