"""Schedules: who sends which chunk to whom, step by step, as data.

The runtime executes them, the planner prices them, `farandole explain` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """Transfers that happen at the same time: sender, receiver and chunk of each.

    It needs no list of ten thousand objects to say what ten thousand workers do: arrays are enough.
    """

    senders: Array
    receivers: Array
    chunks: Array
    adds: bool
    """Whether a receiver adds what comes to what it has; else it takes it instead."""


@dataclass(frozen=True)
class Schedule:
    """How a tensor of some chunks is summed over workers."""

    name: str
    workers: int
    chunks: int
    make: Callable[[], Iterator[Step]]

    def steps(self) -> Iterator[Step]:
        """One after the other."""
        return self.make()

    def bounds(self, size: int) -> list[tuple[int, int]]:
        """Where each chunk of a tensor of so many values begins and ends.

        >>> ring(3).bounds(8)
        [(0, 2), (2, 5), (5, 8)]
        """
        cuts = [number * size // self.chunks for number in range(self.chunks + 1)]
        return list(pairwise(cuts))

    def sent(self, size: int) -> Array:
        """How many values each worker sends.

        >>> ring(5).sent(10).tolist()  # 2 (N - 1) K / N
        [16, 16, 16, 16, 16]
        >>> parameter_server(5).sent(10).tolist()  # the server has to answer all workers
        [40, 10, 10, 10, 10]
        """
        lengths = np.array([end - start for start, end in self.bounds(size)])
        total = np.zeros(self.workers, np.int64)
        for step in self.steps():
            np.add.at(total, step.senders, lengths[step.chunks])
        return total


def scatter_reduce(workers: int) -> Schedule:
    """Round a ring, each adds its part to the chunk that comes by.

    Worker i begins with chunk i; in the end it has the whole sum of chunk i + 1.

    >>> [step.chunks.tolist() for step in scatter_reduce(3).steps()]
    [[0, 1, 2], [2, 0, 1]]
    """
    return Schedule("scatter-reduce", workers, workers, lambda: _round(workers, 0, adds=True))


def all_gather(workers: int) -> Schedule:
    """Round a ring, each passes on the finished chunk that it has got last.

    Worker i begins with chunk i + 1.

    >>> [step.chunks.tolist() for step in all_gather(3).steps()]
    [[1, 2, 0], [0, 1, 2]]
    """
    return Schedule("all-gather", workers, workers, lambda: _round(workers, 1, adds=False))


def ring(workers: int) -> Schedule:
    """Ring all-reduce: scatter-reduce, then all-gather.

    >>> len(list(ring(5).steps()))
    8
    """
    parts = scatter_reduce(workers), all_gather(workers)
    return Schedule(
        "ring", workers, workers, lambda: chain.from_iterable(part.steps() for part in parts)
    )


def parameter_server(workers: int, servers: int = 1) -> Schedule:
    """Every worker sends chunk s to the server s, which adds them up and sends the sum back.

    Servers are the first workers: what one of them has itself, it need not send.

    >>> push, pull = parameter_server(3).steps()
    >>> push.senders.tolist(), push.receivers.tolist(), push.adds
    ([1, 2], [0, 0], True)
    >>> pull.senders.tolist(), pull.receivers.tolist(), pull.adds
    ([0, 0], [1, 2], False)
    """
    return Schedule("parameter-server", workers, servers, lambda: _push_and_pull(workers, servers))


def _round(workers: int, first: int, *, adds: bool) -> Iterator[Step]:
    senders = np.arange(workers)
    receivers = (senders + 1) % workers
    twice = np.concatenate([senders, senders])  # any rotation is a slice of it
    for number in range(workers - 1):
        start = (first - number) % workers
        yield Step(senders, receivers, twice[start : start + workers], adds)


def _push_and_pull(workers: int, servers: int) -> Iterator[Step]:
    if workers == 1:
        return
    pairs = np.array([(w, s) for s in range(servers) for w in range(workers) if w != s])
    clients, chunks = pairs[:, 0], pairs[:, 1]
    yield Step(clients, chunks, chunks, adds=True)
    yield Step(chunks, clients, chunks, adds=False)
