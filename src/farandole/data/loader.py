"""A shard → the batches of an epoch, as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from farandole.data.order import (
    VIRTUAL_SHARDS,
    in_validation,
    ordered_steps,
    owned_by,
    shuffled_cuts,
    shuffled_rows,
)
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


def split(
    shard: Shard, placement: Placement, rows: int, seed: int, validation: str | float | None
) -> tuple[Rows, Rows]:
    """The rows to train on and those to validate on."""
    shards = placement.shards_of(shard.keys, rows)
    held_out = np.zeros(len(shard), bool)
    if isinstance(validation, str) and len(shard):
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

    `sizes` are those of *all* virtual shards, over all workers, and `all_rows` counts held-out rows
    too: the order depends on nothing else.
    """

    def __init__(
        self,
        shard: Shard,
        rows: Rows,
        sizes: Array,
        all_rows: int,
        *,
        rank: int,
        size: int,
        batch_size: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        self._shard = shard
        self._rows = rows
        self._sizes = sizes
        self._all_rows = all_rows
        self._owned = owned_by(rank, size)
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self.total = int(sizes.sum())
        self.own_rows = len(rows.numbers)
        self.steps = -(-self.total // batch_size)

    def epoch(self, epoch: int) -> Iterator[torch.Tensor]:
        """The row numbers of this worker's part of each step, which may be none."""
        order, ends = self._plan(epoch)
        start = 0
        for end in ends.tolist():
            yield order[start:end]
            start = end

    def chunks(self, rows: Rows, size: int) -> Iterator[torch.Tensor]:
        """Row numbers in the order of storage, `size` at a time: for evaluation."""
        numbers = np.sort(rows.numbers)
        for start in range(0, len(numbers), size):
            yield torch.from_numpy(numbers[start : start + size])

    def _plan(self, epoch: int) -> tuple[torch.Tensor, Array]:
        """The row numbers of an epoch in the order of their steps, and where each step ends."""
        if self._shuffle:
            order, step = self._shuffled(epoch)
        else:
            numbers = self._rows.numbers
            order = numbers[np.argsort(self._shard.keys[numbers], kind="stable")]
            keys = self._shard.keys[order]
            step = ordered_steps(keys, self._all_rows, self.total, self._batch_size)
        ends = np.cumsum(np.bincount(step, minlength=self.steps))
        return torch.from_numpy(order), ends

    def _shuffled(self, epoch: int) -> tuple[Array, Array]:
        cuts = shuffled_cuts(self._sizes, self._batch_size, self._seed, epoch)
        orders, steps, start = [], [], 0
        for shard in self._owned:
            size = int(self._rows.sizes[shard])
            numbers = self._rows.numbers[start : start + size]
            orders.append(numbers[shuffled_rows(size, self._seed, epoch, shard)])
            steps.append(np.searchsorted(cuts[:, shard], np.arange(size), side="right"))
            start += size
        step = np.concatenate(steps)
        by_step = np.argsort(step, kind="stable")
        return np.concatenate(orders)[by_step], step[by_step]
