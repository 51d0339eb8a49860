"""Which worker owns a row, and in which step of which epoch it is used: pure functions.

Rows fall into V virtual shards, and a worker owns a run of them. Everything below depends
only on the sizes of the virtual shards, the batch size, the seed and the epoch, never on
the number of workers: 1, 2, 3 or 8 of them walk through the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

VIRTUAL_SHARDS = 240
"""Divisible by 1–6, 8, 10, 12, 15, 16, 20, 24, 30, 40, 48, 60, 80, 120 and 240 workers."""

Array = np.ndarray[Any, Any]
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def owned_by(rank: int, size: int, shards: int = VIRTUAL_SHARDS) -> range:
    """The virtual shards of a worker: those v with v * size // shards == rank.

    >>> owned_by(1, 3)
    range(80, 160)
    """
    return range(-(-rank * shards // size), -(-(rank + 1) * shards // size))


def block_of(positions: Array, rows: int, shards: int = VIRTUAL_SHARDS) -> Array:
    """Virtual shards as contiguous blocks: a worker reads only its part of a file."""
    return positions * shards // max(rows, 1)


STRIDE = 149
"""Coprime to the number of shards, and near its golden section."""


def stripe_of(keys: Array, shards: int = VIRTUAL_SHARDS) -> Array:
    """Virtual shards by remainder: spreads consecutive positions, and hashes, evenly.

    Neighbours land far apart, on different workers: when order is kept, they share each batch.

    >>> stripe_of(np.arange(4)).tolist()
    [0, 149, 58, 207]
    """
    return keys % shards * STRIDE % shards


_64_BITS = 0xFFFFFFFFFFFFFFFF


def generator(seed: int, *places: int) -> np.random.Generator:
    """Random numbers of a seed, which may be negative, for one place of many.

    >>> generator(-1, 2).random() == generator(-1, 2).random() != generator(1, 2).random()
    True
    """
    return np.random.default_rng([seed & _64_BITS, *places])


def splitmix64(keys: Array, seed: int) -> Array:
    """Keys → uniform 64-bit numbers, the same on every machine."""
    offset = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _64_BITS)
    with np.errstate(over="ignore"):
        z = keys.astype(np.int64).view(np.uint64) + offset
        z = (z ^ (z >> np.uint64(30))) * _MIX[0]
        z = (z ^ (z >> np.uint64(27))) * _MIX[1]
        return z ^ (z >> np.uint64(31))


def in_validation(keys: Array, fraction: float, seed: int) -> Array:
    """A seeded choice of about `fraction` of the rows, whatever their order."""
    return splitmix64(keys, seed ^ 0x5EED) < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


def step_ends(rows: int, batch: int) -> Array:
    """How many rows have been used after each step of an epoch.

    >>> step_ends(10, 4).tolist()
    [4, 8, 10]
    """
    return np.minimum(np.arange(batch, rows + batch, batch), rows)


def shuffled_cuts(sizes: Array, batch: int, seed: int, epoch: int) -> Iterator[Array]:
    """cuts[k, v]: how many rows of virtual shard v have been used after step k; in blocks of steps.

    Row j of a shard with n rows happens at the time (j + u) / n, u a random phase of the
    shard, and a step takes the next `batch` rows in time. So every batch is spread evenly over the
    shards (and hence over the workers), has exactly `batch` rows, and is another one each epoch
    even for shards with a single row. The times that part the steps are found by bisection.
    """
    rows = int(sizes.sum())
    ends = step_ends(rows, batch)
    phases = (generator(seed, epoch).permutation(len(sizes)) + 0.5) / len(sizes)
    filled = np.flatnonzero(sizes)
    for start in range(0, len(ends), _BLOCK):
        part = ends[start : start + _BLOCK]
        cuts = np.zeros((len(part), len(sizes)), np.int64)
        cuts[:, filled] = _cuts_at(sizes[filled], phases[filled], part)
        yield cuts


_BLOCK = 1024
"""Steps that are planned at once: keeps the plan of an epoch small, however many steps it has."""


def _cuts_at(sizes: Array, phases: Array, ends: Array) -> Array:
    """The rows of each shard among the first `ends` in time, which add up to exactly that."""
    rows = int(sizes.sum())
    # A grid 2^10 times finer than the mean distance of rows; brackets end as single cells of
    # it, which are equal or disjoint for any two steps: so the cuts never run backwards.
    cells = 2 ** (rows.bit_length() + 10)
    spread = len(sizes) + 1  # no shard is ever further than one row from its even share
    low = np.clip(np.floor((ends - spread) / rows * cells), 0, cells).astype(np.int64)
    high = np.clip(np.ceil((ends + spread) / rows * cells), 0, cells).astype(np.int64)
    while (high - low).max() > 1:
        middle = (low + high) // 2
        below = _before(middle / cells, sizes, phases).sum(axis=1) < ends
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    counts = _before(low / cells, sizes, phases)
    room = _before(high / cells, sizes, phases) - counts
    lacking = ends - counts.sum(axis=1)
    # What is left falls into one cell: taken in the order of the shards.
    return np.asarray(
        counts + np.clip(lacking[:, None] - (np.cumsum(room, axis=1) - room), 0, room)
    )


def _before(times: Array, sizes: Array, phases: Array) -> Array:
    """How many rows of each shard happen before each of the times."""
    counts: Array = np.clip(np.ceil(times[:, None] * sizes - phases), 0, sizes)
    return counts.astype(np.int64)


def positions_among_used(
    keys: Array, held_out: Array, rows: int, reduce_sums: Callable[[Array], Array]
) -> Array:
    """The position of each row among those that are trained on, counted over all workers.

    `keys` are positions among all `rows`, `held_out` those of this worker's held-out rows, and
    `reduce_sums` adds arrays over workers.

    >>> positions_among_used(np.arange(5), np.array([0, 2]), 5, lambda mine: mine).tolist()
    [0, 0, 1, 1, 2]
    """
    positions, passed = keys.copy(), 0
    for start in range(0, rows, _CHUNK):
        mine = np.zeros(min(_CHUNK, rows - start), np.int32)
        mine[held_out[(held_out >= start) & (held_out < start + _CHUNK)] - start] = 1
        counts = reduce_sums(mine)
        before = passed + np.cumsum(counts) - counts
        inside = (keys >= start) & (keys < start + _CHUNK)
        positions[inside] -= before[keys[inside] - start]
        passed += int(counts.sum())
    return positions


_CHUNK = 1 << 20


def shuffled_rows(size: int, seed: int, epoch: int, shard: int) -> Array:
    """The order in which an epoch uses the rows of one virtual shard."""
    return generator(seed, epoch, shard).permutation(size)
