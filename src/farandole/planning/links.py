"""Links: what transfers cost on the links of a cluster's hosts.

Time goes by step by step: in each one, arrays say when every sender has what it sends, when its
host's link is free, and hence when it arrives; a row for each size of a message. So ten thousand
workers cost no more Python than two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farandole.parallel import Step
from farandole.planning.cluster import Cluster

Times = npt.NDArray[np.float64]
"""A row for each size, a column for each worker, host or transfer."""
Indices = npt.NDArray[np.int64]


class ColumnIndex:
    """Columns of an array with `width` of them.

    The neighbours in a ring are all columns, turned by one; the last workers of hosts are each n-th
    column. Slices are several times faster than a list of places, and a ring has many steps.

    >>> rows = np.array([[1.0, 2.0, 3.0]])
    >>> ColumnIndex(np.array([1, 2, 0]), 3).take(rows).tolist()
    [[2.0, 3.0, 1.0]]
    """

    def __init__(self, indices: Indices, width: int) -> None:
        self.indices = indices
        self.once = len(indices) == 0 or int(np.bincount(indices).max()) <= 1
        """Whether no column is there twice."""
        self._parts = _slices(indices, width)

    def take(self, rows: Times) -> Times:
        """These columns, in this order. Not to be written to: it may be a view."""
        if self._parts is None:
            return rows.take(self.indices, axis=1, mode="clip")
        if len(self._parts) == 1:
            return rows[:, self._parts[0]]
        return np.concatenate([rows[:, part] for part in self._parts], axis=1)

    def put(self, rows: Times, values: Times) -> None:
        """Set these columns; each may be there once only."""
        if self._parts is None:
            rows[:, self.indices] = values
            return
        start = 0
        for part in self._parts:
            into = rows[:, part]
            into[...] = values[:, start : start + into.shape[1]]
            start += into.shape[1]

    def raise_to(self, rows: Times, values: Times) -> None:
        """Let these columns be at least so large."""
        if self._parts is None and not self.once:
            for row, one in zip(rows, values, strict=True):
                np.maximum.at(row, self.indices, one)
        elif self._parts is None:
            rows[:, self.indices] = np.maximum(self.take(rows), values)
        else:
            start = 0
            for part in self._parts:
                into = rows[:, part]
                np.maximum(into, values[:, start : start + into.shape[1]], out=into)
                start += into.shape[1]


def _slices(indices: Indices, width: int) -> list[slice] | None:
    """The same columns as one slice, or as two where all of them are turned round."""
    if len(indices) == 0:
        return [slice(0, 0)]
    first = int(indices[0])
    if len(indices) == width and np.array_equal(indices, (np.arange(width) + first) % width):
        return [slice(first, width), slice(0, first)] if first else [slice(0, width)]
    apart = int(indices[1]) - first if len(indices) > 1 else 1
    if apart > 0 and bool((np.diff(indices) == apart).all()):
        return [slice(first, int(indices[-1]) + 1, apart)]
    return None


@dataclass(frozen=True)
class _Route:
    """Which hosts the transfers of a step go between. A ring takes the same one in every step."""

    step: Step
    senders: ColumnIndex
    receivers: ColumnIndex
    away: ColumnIndex
    """The transfers that leave a host."""
    source: ColumnIndex
    """The hosts that those leave."""
    target: ColumnIndex
    inside: Times | None
    """Seconds of each transfer, if it stays within a host; None if none does."""

    @classmethod
    def of(cls, step: Step, cluster: Cluster, workers: int, sizes: Times) -> _Route:
        source, target = step.senders // cluster.per_host, step.receivers // cluster.per_host
        away, hosts = np.flatnonzero(source != target), cluster.hosts(workers)
        return cls(
            step,
            ColumnIndex(step.senders, workers),
            ColumnIndex(step.receivers, workers),
            ColumnIndex(away, len(source)),
            ColumnIndex(source[away], hosts),
            ColumnIndex(target[away], hosts),
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


def _queued(free: Times, places: ColumnIndex, arrive: Times, service: Times) -> Times:
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
