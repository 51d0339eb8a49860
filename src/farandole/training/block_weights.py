"""Row weights that give the objective of Spark ML's perceptron: the mean of its blocks' means.

A block is `block_size` consecutive rows of one partition of the DataFrame; the last block of a
partition may be smaller. Written as a weight for each row, it doesn't matter which worker has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from farandole.data import Array, Columns, Shard
from farandole.parallel import gather_objects
from farandole.world import World

_PARTITION_BITS = 33
"""Spark's monotonically_increasing_id: the partition above these bits, the position below."""
_WEIGHT = "__farandole_block_weight"


def add_block_weights(shard: Shard, columns: Columns, block_size: int, world: World) -> Columns:
    """Add a column of weights to the shard; gives the columns with it."""
    mine = Counter(dict(zip(*_counted(shard.keys >> _PARTITION_BITS), strict=True)))
    sizes = sum(gather_objects(mine, world), Counter[int]())
    shard.columns[_WEIGHT] = torch.from_numpy(row_weights(shard.keys, sizes, block_size))
    return replace(columns, weight=_WEIGHT)


def row_weights(keys: Array, sizes: Mapping[int, int], block_size: int) -> Array:
    """The weight of each row; those of all rows of all partitions add up to one.

    >>> row_weights(np.arange(3), {0: 3}, 2).tolist()
    [0.25, 0.25, 0.5]
    """
    blocks = sum(-(-rows // block_size) for rows in sizes.values())
    partitions, inverse = np.unique(keys >> _PARTITION_BITS, return_inverse=True)
    rows = np.array([sizes[int(p)] for p in partitions], np.int64)[inverse]
    position = keys & ((1 << _PARTITION_BITS) - 1)
    start = position - position % block_size
    return np.asarray(1 / (blocks * np.minimum(rows - start, block_size)), np.float64)


def _counted(values: Array) -> tuple[list[int], list[int]]:
    found, counts = np.unique(values, return_counts=True)
    return found.tolist(), counts.tolist()
