"""Blocks of rows, as Spark ML's perceptron has them: its objective is the mean of their means.

A block has so many consecutive rows of one partition of the DataFrame; what is left at the end of
a partition is a smaller one. As a sum over rows that is a weight for each, so that it doesn't
matter which worker a row is on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from farandole.data import Array, Columns, Shard
from farandole.training.examination import everybody
from farandole.world import World

_PARTITION_BITS = 33
"""Spark's monotonically_increasing_id: the partition above these bits, the position below."""
_WEIGHT = "__farandole_block_weight"


def weighted_by_block(shard: Shard, columns: Columns, block_size: int, world: World) -> Columns:
    """Give the shard a column of weights, and say so."""
    mine = Counter(dict(zip(*_counted(shard.keys >> _PARTITION_BITS), strict=True)))
    sizes = sum(everybody(mine, world.size), Counter[int]())
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
