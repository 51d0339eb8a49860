"""Links: every transfer waits in the queues of the links that it takes.

Time goes by step by step: in each one, arrays say when every sender has what it sends, when its
host's link is free, and hence when it arrives; a row for each size of a message. So ten thousand
workers cost no more Python than two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farandole.parallel import Step
from farandole.planning.cluster import Cluster
from farandole.planning.places import Indices, Places, Times


@dataclass(frozen=True)
class _Route:
    """Which hosts the transfers of a step go between. A ring takes the same one in every step."""

    step: Step
    senders: Places
    receivers: Places
    away: Places
    """The transfers that leave a host."""
    source: Places
    """The hosts that those leave."""
    target: Places
    inside: Times | None
    """Seconds of each transfer, if it stays within a host; None if none does."""

    @classmethod
    def of(cls, step: Step, cluster: Cluster, workers: int, sizes: Times) -> _Route:
        source, target = step.senders // cluster.per_host, step.receivers // cluster.per_host
        away, hosts = np.flatnonzero(source != target), cluster.hosts(workers)
        return cls(
            step,
            Places(step.senders, workers),
            Places(step.receivers, workers),
            Places(away, len(source)),
            Places(source[away], hosts),
            Places(target[away], hosts),
            _inside(step, cluster, sizes) if len(away) < len(source) else None,
        )

    def serves(self, step: Step) -> bool:
        """Whether a step takes this route too."""
        return step.senders is self.step.senders and step.receivers is self.step.receivers


def _inside(step: Step, cluster: Cluster, sizes: Times) -> Times:
    """Inside of a host, transfers at the same time share what carries them."""
    source, target = step.senders // cluster.per_host, step.receivers // cluster.per_host
    near = source == target
    messages = _sharing(source, near)
    turns = messages if np.isfinite(cluster.cores) else np.ones_like(messages)
    crowd = np.maximum.reduce(
        [
            messages / cluster.cores,
            _sharing(step.senders, near),  # a worker itself does one thing at a time
            _sharing(step.receivers, near),
        ]
    )
    seconds = cluster.local_latency * turns + sizes / cluster.local_bandwidth * crowd
    return np.asarray(seconds)


class Links:
    """When each host's link out and link in are free again, and each worker ready.

    Args:
        cluster: whose links.
        workers: how many.
        sizes: bytes of a message, in a column: so many simulations at once.
    """

    def __init__(self, cluster: Cluster, workers: int, sizes: Times) -> None:
        self.ready = np.zeros((len(sizes), workers))
        self._workers, self._cluster, self._sizes = workers, cluster, sizes
        self._out, self._in = np.zeros((2, len(sizes), cluster.hosts(workers)))
        self._route: _Route | None = None
        self._steps = 0
        self._sent = np.zeros(workers)

    def carry(self, step: Step) -> None:
        """Let each worker have what it gets in a step."""
        if self._route is None or not self._route.serves(step):
            self._count()
            self._route = _Route.of(step, self._cluster, self._workers, self._sizes)
        self._steps += 1
        route = self._route
        start = route.senders.take(self.ready)
        if route.inside is None:
            arrived = self._between(start, route)
        else:
            arrived = start + route.inside
            if len(route.away.indices):
                route.away.put(arrived, self._between(route.away.take(start), route))
        # A worker goes on when the last thing that it waits for is there.
        route.receivers.raise_to(self.ready, arrived)

    def sent(self) -> Times:
        """How many messages each worker has sent."""
        self._count()
        return self._sent

    def _count(self) -> None:
        if self._route is not None:
            once = np.bincount(self._route.step.senders, minlength=self._workers)
            self._sent += self._steps * once
        self._steps = 0

    def _between(self, start: Times, route: _Route) -> Times:
        """From host to host: first the queue of the link out, then that of the link in."""
        service = self._sizes / self._cluster.usable
        left = _queued(self._out, route.source, start, service)
        # Bytes don't wait for the last one to leave before the first one arrives.
        return _queued(self._in, route.target, left + (self._cluster.latency - service), service)


def _queued(free: Times, places: Places, arrive: Times, service: Times) -> Times:
    """When each one has passed a queue that serves in the order of arrival; `free` moves on."""
    if places.once:
        done = np.maximum(arrive, places.take(free))
        done += service
        places.put(free, done)
        return done
    rows = zip(free, arrive, service[:, 0], strict=True)
    return np.stack([_queue(own, places.indices, came, float(one)) for own, came, one in rows])


def _queue(free: Times, places: Indices, arrive: Times, service: float) -> Times:
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


def _sharing(places: Indices, near: Indices) -> Times:
    """How many that stay within a host have the same place, for each of all."""
    return np.bincount(places, weights=near)[places].astype(np.float64)
