"""A shard → the batches of an epoch, as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from farandole.data.chunking import chunk_rows
from farandole.data.order import (
    VIRTUAL_SHARDS,
    in_validation,
    owned_by,
    shuffled_cuts,
    shuffled_rows,
)
from farandole.data.schema import Fold
from farandole.data.shards import Shard
from farandole.data.source import Placement

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rows:
    """Rows of a shard, by number: virtual shard after virtual shard, each in the order of keys."""

    numbers: Array
    sizes: Array
    """How many of them each of the V virtual shards has."""

    @classmethod
    def of(cls, numbers: Array, keys: Array, shards: Array) -> Rows:
        """Sort row numbers by (virtual shard, key)."""
        order = np.lexsort((keys[numbers], shards[numbers]))
        return cls(numbers[order], np.bincount(shards[numbers], minlength=VIRTUAL_SHARDS))


def train_validation_split(
    shard: Shard,
    placement: Placement,
    rows: int,
    seed: int,
    validation: str | float | Fold | None,
) -> tuple[Rows, Rows]:
    """The rows to train on and those to validate on."""
    shards = placement.shards_of(shard.keys, rows)
    held_out = np.zeros(len(shard), bool)
    if isinstance(validation, Fold):
        if len(shard):
            held_out = shard.columns[validation.column].numpy() == validation.number
    elif isinstance(validation, str) and len(shard):
        held_out = shard.columns[validation].numpy().astype(bool)
    elif validation:
        held_out = in_validation(shard.keys, float(validation), seed)
    numbers = np.arange(len(shard))
    return (
        Rows.of(numbers[~held_out], shard.keys, shards),
        Rows.of(numbers[held_out], shard.keys, shards),
    )


class Loader:
    """Serves one worker's part of every global batch.

    `sizes` are those of *all* virtual shards, over all workers: a shuffled order depends on nothing
    else. With `positions`, one for each row of the shard, rows are used in that order instead.
    """

    def __init__(
        self,
        shard: Shard,
        rows: Rows,
        sizes: Array,
        *,
        rank: int,
        size: int,
        batch_size: int,
        seed: int,
        positions: Array | None = None,
    ) -> None:
        self._shard = shard
        self._rows = rows
        self._sizes = sizes
        self._owned = owned_by(rank, size)
        self._batch_size = batch_size
        self._seed = seed
        self._positions = positions
        self.total = int(sizes.sum())
        self.own_rows = len(rows.numbers)
        self.steps = -(-self.total // batch_size)

    def epoch(self, epoch: int) -> Iterator[torch.Tensor]:
        """The row numbers of this worker's part of each step, which may be none."""
        return self._shuffled(epoch) if self._positions is None else self._ordered(self._positions)

    def chunks(self, rows: Rows, size: int) -> Iterator[torch.Tensor]:
        """Row numbers in the order of storage: at most `size` at a time, and fewer large ones."""
        numbers = np.sort(rows.numbers)
        for part in chunk_rows(self._shard.row_sizes(numbers), size):
            yield torch.from_numpy(numbers[part])

    def _ordered(self, positions: Array) -> Iterator[torch.Tensor]:
        numbers = self._rows.numbers
        order = numbers[np.argsort(positions[numbers], kind="stable")]
        return _by_step(order, positions[order] // self._batch_size, self.steps)

    def _shuffled(self, epoch: int) -> Iterator[torch.Tensor]:
        orders = self._permuted(epoch)
        used = np.zeros(len(orders), np.int64)
        for cuts in shuffled_cuts(self._sizes, self._batch_size, self._seed, epoch):
            mine = cuts[:, self._owned.start : self._owned.stop]
            numbers = [order[a:b] for order, a, b in zip(orders, used, mine[-1], strict=True)]
            steps = [
                np.searchsorted(mine[:, i], np.arange(used[i], mine[-1, i]), side="right")
                for i in range(len(orders))
            ]
            yield from _by_step(np.concatenate(numbers), np.concatenate(steps), len(cuts))
            used = mine[-1]

    def _permuted(self, epoch: int) -> list[Array]:
        """The rows of each owned virtual shard, in this epoch's order."""
        owned = self._owned
        ends = np.cumsum(self._rows.sizes[owned.start : owned.stop])
        parts = np.split(self._rows.numbers, ends[:-1])
        return [
            part[shuffled_rows(len(part), self._seed, epoch, shard)]
            for shard, part in zip(owned, parts, strict=True)
        ]


def _by_step(numbers: Array, steps: Array, count: int) -> Iterator[torch.Tensor]:
    """The row numbers of each of `count` steps."""
    order = torch.from_numpy(numbers[np.argsort(steps, kind="stable")])
    start = 0
    for end in np.cumsum(np.bincount(steps, minlength=count)).tolist():
        yield order[start:end]
        start = end
