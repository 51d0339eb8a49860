"""Simulation of a schedule: every transfer waits in the queues of the links that it takes.

The schedules are those of `farandole.parallel`, the very objects that workers execute. Time goes by
step by step: in each one, arrays say when every sender has what it sends, when its host's link is
free, and hence when it arrives. So ten thousand workers cost no more Python than two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from farandole.parallel.schedule import Schedule, Step, parameter_server, ring
from farandole.planning.cluster import Cluster

Times = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


SMALL, LARGE = 25e6, 1e9
"""Bytes, a bucket and a large network, for which schedules are simulated."""


@dataclass(frozen=True)
class Curve:
    """Seconds that depend on bytes: known for some sizes, straight between them and beyond.

    >>> (Curve((0.0, 10.0), (1.0, 6.0)) + Curve((0.0, 10.0), (1.0, 1.0)))(20)
    12.0
    """

    sizes: tuple[float, ...] = (0.0, LARGE)
    seconds: tuple[float, ...] = (0.0, 0.0)

    def __call__(self, nbytes: float) -> float:
        """Give the seconds for so many bytes."""
        last = 1
        while last < len(self.sizes) - 1 and nbytes > self.sizes[last]:
            last += 1
        start, end = self.sizes[last - 1], self.sizes[last]
        low, high = self.seconds[last - 1], self.seconds[last]
        return low + (high - low) * (nbytes - start) / (end - start)

    def __add__(self, other: Curve) -> Curve:
        sizes = tuple(sorted({*self.sizes, *other.sizes}))
        return Curve(sizes, tuple(self(size) + other(size) for size in sizes))


@dataclass(frozen=True)
class Collective:
    """How long a sum over all workers takes, and what it sends."""

    reduce: Curve = Curve()
    """Until the last has added something."""
    gather: Curve = Curve()
    """From there until all have all sums."""
    sent: float = 0.0
    """Bytes that the busiest worker sends, for each byte that is summed."""

    @property
    def whole(self) -> Curve:
        """Both together."""
        return self.reduce + self.gather

    def then(self, other: Collective) -> Collective:
        """This one around another: first its sum, then the other, then its answer."""
        reduce, gather = self.reduce + other.reduce, self.gather + other.gather
        return Collective(reduce, gather, self.sent + other.sent)


def ring_collective(workers: int, cluster: Cluster) -> Collective:
    """Our ring, workers of a host next to each other.

    >>> cluster = Cluster(bandwidth=1e9, latency=1e-5, efficiency=1.0)
    >>> round(ring_collective(4, cluster).whole(4e6), 5)  # 6 × (10 µs + 1 MB at 1 GB/s)
    0.00606
    """
    return _ring(workers, cluster.wires)


def server_collective(workers: int, cluster: Cluster, servers: int = 1) -> Collective:
    """Parameter servers, a synchronous round of push and pull; a server's link is a queue.

    >>> cluster = Cluster(bandwidth=1e9, latency=1e-5, efficiency=1.0)
    >>> round(server_collective(5, cluster).whole(1e6), 5)  # 4 in, 4 out, one after the other
    0.00802
    """
    return _servers(workers, cluster.wires, min(servers, workers))


def hierarchical_collective(workers: int, cluster: Cluster) -> Collective:
    """What `allreduce` does: workers of a host sum through memory, one of each host joins a ring.

    >>> cluster = Cluster(bandwidth=1e9, per_host=4, efficiency=1.0)
    >>> ring_among_2 = ring_collective(2, Cluster(bandwidth=1e9, efficiency=1.0)).whole(1e6)
    >>> hierarchical_collective(8, cluster).whole(1e6) > ring_among_2
    True
    """
    inside = simulate(shared_memory(min(workers, cluster.per_host)), cluster)
    outside = ring_collective(cluster.hosts(workers), replace(cluster, per_host=1))
    # What goes through memory is no byte on the wire.
    return Collective(inside.reduce, inside.gather).then(outside)


@lru_cache(maxsize=512)
def _ring(workers: int, cluster: Cluster) -> Collective:
    return simulate(ring(workers), cluster)


@lru_cache(maxsize=512)
def _servers(workers: int, cluster: Cluster, servers: int) -> Collective:
    return simulate(parameter_server(workers, servers), cluster)


def shared_memory(workers: int) -> Schedule:
    """Workers of one host: each reads its share of everybody's values, then copies all sums.

    Either way that is the whole tensor once, which goes from memory to memory and to nobody else.

    >>> [step.adds for step in shared_memory(2).steps()]
    [True, False]
    """
    all_of_them = np.arange(workers if workers > 1 else 0)
    chunks = np.zeros_like(all_of_them)
    steps = [Step(all_of_them, all_of_them, chunks, adds=adds) for adds in (True, False)]
    return Schedule("shared-memory", workers, 1, lambda: iter(steps))


def simulate(schedule: Schedule, cluster: Cluster) -> Collective:
    """Carry out a schedule on a cluster, from a common start, for a few sizes at once.

    Where all transfers take the same kind of way, time is a straight line over bytes, and two sizes
    are enough. Where some stay within a host, these are hidden behind others from some size on.
    """
    sizes = (0.0, LARGE) if cluster.per_host == 1 else (0.0, SMALL, LARGE)
    links = _Links(cluster, schedule.workers, np.array(sizes)[:, None] / schedule.chunks)
    reduced = np.zeros(len(sizes))
    for step in schedule.steps():
        links.carry(step)
        if step.adds:
            reduced = links.ready.max(1)
    done = links.ready.max(1)
    sent = float(links.sent.max()) / schedule.chunks
    reduce, gather = (Curve(sizes, tuple(map(float, ends))) for ends in (reduced, done - reduced))
    return Collective(reduce, gather, sent)


@dataclass(frozen=True)
class _Route:
    """Which hosts the transfers of a step go between. A ring takes the same one in every step."""

    senders: Places
    receivers: Places
    inside: Places
    """The transfers that stay within a host."""
    away: Places
    source: Places
    """The hosts that those leave which go away."""
    target: Places
    crowd: Times
    """How many share what carries one of those inside."""
    turns: Times
    """How many messages a host handles one after the other."""
    alone_out: bool
    """Whether no two leave a host at once; then there is no queue to sort."""
    alone_in: bool
    alone: bool
    """Whether no two go to the same worker."""

    @classmethod
    def of(cls, step: Step, cluster: Cluster) -> _Route:
        source, target = step.senders // cluster.per_host, step.receivers // cluster.per_host
        inside, away = np.flatnonzero(source == target), np.flatnonzero(source != target)
        messages = _sharing(source[inside])
        turns = messages if np.isfinite(cluster.cores) else np.ones_like(messages)
        crowd = np.maximum.reduce(
            [
                messages / cluster.cores,
                _sharing(step.senders[inside]),  # a worker itself does one thing at a time
                _sharing(step.receivers[inside]),
            ]
        )
        source, target = source[away], target[away]
        once = (_once_each(source), _once_each(target), _once_each(step.receivers))
        return cls(step.senders, step.receivers, inside, away, source, target, crowd, turns, *once)

    def serves(self, step: Step) -> bool:
        """Whether a step takes this route too."""
        return step.senders is self.senders and step.receivers is self.receivers


class _Links:
    """When each host's link out and link in are free again, and each worker ready."""

    def __init__(self, cluster: Cluster, workers: int, sizes: Times) -> None:
        self.ready = np.zeros((len(sizes), workers))
        self.sent = np.zeros(workers)
        self._cluster = cluster
        self._sizes = sizes
        self._out, self._in = np.zeros((2, len(sizes), cluster.hosts(workers)))
        self._route: _Route | None = None

    def carry(self, step: Step) -> None:
        """Let each worker have what it gets in a step."""
        if self._route is None or not self._route.serves(step):
            self._route = _Route.of(step, self._cluster)
        route = self._route
        start = _taken(self.ready, route.senders)
        if len(route.inside) == 0:
            arrived = self._between(start, route)
        else:
            arrived = np.empty_like(start)
            near = self._within(_taken(start, route.inside), route)
            far = self._between(_taken(start, route.away), route)
            for row, some, others in zip(arrived, near, far, strict=True):
                row[route.inside], row[route.away] = some, others
        self._receive(route, arrived)

    def _between(self, start: Times, route: _Route) -> Times:
        """From host to host: first the queue of the link out, then that of the link in."""
        service = self._sizes / self._cluster.usable
        left = _queued(self._out, route.source, start, service, route.alone_out)
        # Bytes don't wait for the last one to leave before the first one arrives.
        left += self._cluster.latency - service
        return _queued(self._in, route.target, left, service, route.alone_in)

    def _within(self, start: Times, route: _Route) -> Times:
        """Inside of a host: transfers at the same time share what carries them."""
        bytes_alone = self._sizes / self._cluster.local_bandwidth
        latency = self._cluster.local_latency * route.turns
        return np.asarray(start + latency + bytes_alone * route.crowd)

    def _receive(self, route: _Route, arrived: Times) -> None:
        """A worker goes on when the last thing that it waits for is there."""
        for row, times in zip(self.ready, arrived, strict=True):
            if route.alone:
                row[route.receivers] = np.maximum(row.take(route.receivers, mode="clip"), times)
            else:
                np.maximum.at(row, route.receivers, times)
        self.sent += np.bincount(route.senders, minlength=len(self.sent))


def _queued(free: Times, places: Places, arrive: Times, service: Times, alone: bool) -> Times:
    """When each one has passed a queue that serves in the order of arrival; `free` moves on."""
    done = np.empty_like(arrive)
    for row, came, own, one in zip(done, arrive, free, service[:, 0], strict=True):
        if alone:
            np.maximum(came, own.take(places, mode="clip"), out=row)
            row += one
            own[places] = row
        else:
            row[:] = _queue(own, places, came, one)
    return done


def _taken(rows: Times, places: Places) -> Times:
    """Some of each row; row by row, and without a check of each place, is by far the fastest."""
    return np.stack([row.take(places, mode="clip") for row in rows])


def _queue(free: Times, places: Places, arrive: Times, service: float) -> Times:
    """The same where several wait in one queue: each begins when the one before it is done."""
    order = np.lexsort((arrive, places))
    place = places[order]
    begins = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    lengths = np.diff(np.r_[begins, len(place)])
    position = np.arange(len(place)) - np.repeat(begins, lengths)
    # Done = the latest of all before, had they all come when they did, plus the service since then.
    lead = np.maximum(arrive[order], free[place]) - position * service
    latest = np.concatenate([np.maximum.accumulate(part) for part in np.split(lead, begins[1:])])
    done = np.empty_like(arrive)
    done[order] = latest + (position + 1) * service
    np.maximum.at(free, places, done)
    return done


def _sharing(places: Places) -> Times:
    """How many have the same place, for each."""
    return np.bincount(places)[places].astype(np.float64)


def _once_each(places: Places) -> bool:
    return len(places) == 0 or int(np.bincount(places).max()) <= 1
