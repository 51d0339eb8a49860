"""Feature cache: frozen layers see each row once, and the tail learns from what they gave.

That is done where it makes no difference: everything that learns is in one part of the network, the
frozen layers in front of it give the same for a row in every epoch, and the network's output is
that of its tail. Otherwise the whole network is trained as usual.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data import MappedArray, Shard, chunk_rows, scratch_folder
from farandole.networks import PROBE_ROWS, BatchSizing
from farandole.parallel import broadcast_state, gather_objects
from farandole.training import events
from farandole.training.batches import Batcher
from farandole.training.context import Clock
from farandole.training.job import TrainingJob
from farandole.training.passes import make_passes
from farandole.training.precision import flush_denormals
from farandole.training.preflight import Trainable
from farandole.training.split_point import NoSplit, SplitPoint, check_split, split_points
from farandole.world import World

_NAME = "__farandole_features"
_TRIED_ROWS = 4
"""Rows that a split point is tried with."""
_EXCHANGE_SECONDS = 1.0
"""How often workers exchange their states: none may wait for the slowest until a timeout."""
_MOST_TIMES, _MOST_BYTES = 8, 4 << 30
"""Features of more bytes than this, and so many times the rows', are better computed than read."""


class _State(Enum):
    WORKING = auto()
    DONE = auto()
    GAVE_UP = auto()


def cache_features(trainable: Trainable, job: TrainingJob, world: World) -> Trainable:
    """The tail behind frozen layers, over cached features; all of it where that isn't possible."""
    recipe = job.recipe
    if recipe.freeze is None or recipe.unfreeze_at is not None or not recipe.cache_features:
        return trainable
    if any(name in trainable.batcher.shard.ragged for name in job.columns.labels):
        return trainable
    if not job.columns.labels:  # what is learned is the input, not what frozen layers make of it
        return trainable
    if not job.strategy.is_whole:  # the strategy splits the network in its own way
        return trainable
    start = time.perf_counter()
    broadcast_state(trainable.network, world)  # all workers have to cache what rank 0 would
    cached = FrozenPart(trainable, world, recipe.max_seconds).cached()
    trainable = replace(trainable, caching_seconds=time.perf_counter() - start)
    if cached is None:
        return trainable
    tail, batcher = cached
    passes = make_passes(tail, batcher.loss, recipe, world)
    return replace(trainable, network=tail, batcher=batcher, passes=passes, is_cached=True)


@dataclass(frozen=True)
class FrozenPart:
    """The layers in front of the tail, and this worker's rows."""

    whole: Trainable
    world: World
    max_seconds: float | None = None

    @property
    def _shard(self) -> Shard:
        return self.whole.batcher.shard

    def cached(self) -> tuple[nn.Module, Batcher] | None:
        """Run the frozen layers over all rows: the tail and the batches that it takes instead.

        None, on all workers, where that isn't possible.
        """
        with flush_denormals(), self.whole.passes.autocast():
            point = self._agree_on_split_point()
            column = None if point is None else self._agree_on_column(point)
        if point is None or column is None:
            return None
        batcher, columns = self.whole.batcher, self.whole.batcher.columns
        others = {*columns.labels, columns.weight, columns.validation}
        kept = {name: one for name, one in self._shard.columns.items() if name in others}
        shard = Shard(
            {**kept, _NAME: column}, self._shard.keys, mapped_arrays=self._shard.mapped_arrays
        )
        return point.tail, replace(
            batcher,
            shard=shard,
            columns=replace(columns, features=(_NAME,)),
            signature=_tail_signature(batcher.signature, column),
        )

    def _agree_on_split_point(self) -> SplitPoint | None:
        """The first one that is possible on all workers."""
        found = split_points(self.whole.network, self.whole.frozen)
        votes = gather_objects([self._is_possible(point) for point in found], self.world)
        agreed = [all(vote) for vote in zip(*votes, strict=True)]
        return found[agreed.index(True)] if any(agreed) else None

    def _is_possible(self, point: SplitPoint) -> bool:
        rows = torch.arange(min(len(self._shard), _TRIED_ROWS))
        if len(rows) == 0:
            return True
        network, frozen, batcher = self.whole.network, self.whole.frozen, self.whole.batcher
        some, fewer = batcher(rows), batcher(rows[: max(1, len(rows) // 2)])
        try:
            features = check_split(point, network, frozen, some.arguments, fewer.arguments)
        except Exception:  # a network that can't be split may well be trained as a whole
            return False
        return (
            features.dim() > 0 and len(features) == len(rows) and self._is_worth_the_disk(features)
        )

    def _is_worth_the_disk(self, some: torch.Tensor) -> bool:
        """Whether half of the disk's free space is enough, if all workers share one disk."""
        rows, size = len(self._shard), 4 if some.dtype == torch.bfloat16 else some.element_size()
        needed = some.numel() // len(some) * size * rows
        given = sum(self._bytes(name) for name in self.whole.batcher.columns.features)
        if needed > max(_MOST_BYTES, _MOST_TIMES * given):
            return False
        return needed * self.world.size <= shutil.disk_usage(scratch_folder()).free // 2

    def _bytes(self, name: str) -> int:
        if name in self._shard.ragged:
            return int(self._shard.ragged[name].values.nbytes)
        return int(self._shard.columns[name].nbytes)

    def _agree_on_column(self, point: SplitPoint) -> torch.Tensor | None:
        """This worker's features; None, on all workers, if one of them had to give up."""
        mapped = MappedArray(scratch_folder())
        self._shard.mapped_arrays.append(mapped)
        work, states = self._write_features(mapped, point), [_State.WORKING]
        while _State.WORKING in states and _State.GAVE_UP not in states:
            states = gather_objects(_advance(work), self.world)
        mine = None
        if set(states) == {_State.DONE}:
            with suppress(OSError):
                mine = mapped.tensor()
        facts = None if mine is None else (len(mine), mine.shape[1:], mine.dtype)
        votes = gather_objects(facts, self.world)
        kinds = {vote[1:] for vote in votes if vote is not None and vote[0]}
        if mine is None or None in votes or len(kinds) != 1:
            self._shard.mapped_arrays.remove(mapped)
            mapped.close()
            return None
        shape, dtype = kinds.pop()
        return mine if len(mine) else torch.empty((0, *shape), dtype=dtype)

    def _write_features(self, mapped: MappedArray, point: SplitPoint) -> Iterator[None]:
        """Write the features of all rows in the order of storage, some at a time."""
        clock, limit, rows = Clock(None), Clock(self.max_seconds), len(self._shard)
        network = self.whole.network
        network.eval()
        self._report(0)
        done, at_once = 0, PROBE_ROWS
        while done < rows:
            if self.world.link.stop_requested() or limit.has_expired():  # the loop sees it too
                raise NoSplit
            ahead = np.arange(done, min(done + at_once, rows))
            end = done + next(chunk_rows(self._shard.row_sizes(ahead), at_once)).stop
            with BatchSizing(network) as sizing:
                values = self._features(point, torch.arange(done, end))
            if mapped.shape_if_known() not in (None, tuple(values.shape[1:])):
                raise NoSplit
            mapped.append(values.numpy())
            done, at_once = end, sizing.rows_that_fit(end - done)
            if clock.should_report() or done == rows:
                self._report(done)
            yield

    def _features(self, point: SplitPoint, rows: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            values = point.features(self.whole.network, self.whole.batcher(rows).arguments).cpu()
        return values.float() if values.dtype == torch.bfloat16 else values

    def _report(self, done: int) -> None:
        if self.world.is_leader:
            self.world.link.tell(events.FeaturesCached(rows=done, of=len(self._shard)))


def _tail_signature(whole: Signature, features: torch.Tensor) -> Signature:
    """How the tail takes its rows."""
    return replace(
        whole,
        features=(_NAME,),
        shapes=(tuple(features.shape[1:]),),
        dtypes=(str(features.dtype).removeprefix("torch."),),
        stacked=False,
        floated=False,
    )


def _advance(work: Iterator[None]) -> _State:
    """Go on until it is time to exchange states, or there is nothing more to do."""
    start = time.perf_counter()
    try:
        for _ in work:
            if time.perf_counter() - start > _EXCHANGE_SECONDS:
                return _State.WORKING
    except (NoSplit, OSError):
        return _State.GAVE_UP
    return _State.DONE
