"""TrainingContext: all that a training loop needs, be it over batches or over all rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data import Array, Loader, Rows, Shard, positions_among_used, train_validation_split
from farandole.networks import PROBE_ROWS, BatchSizing
from farandole.parallel import Synchronizer, long_barrier
from farandole.training import events
from farandole.training.batches import Batcher
from farandole.training.freezing import Frozen
from farandole.training.job import TrainingJob
from farandole.training.metrics import HeadMetrics, history_names
from farandole.training.optimizers import Group, groups
from farandole.training.passes import Passes
from farandole.training.pipeline_passes import PipelinePasses, check_loss
from farandole.training.preflight import Trainable
from farandole.training.recipe import Recipe
from farandole.training.stragglers import StragglerWatch
from farandole.training.tally import Tally
from farandole.world import World


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """A network, its rows, and the workers it is trained with."""

    job: TrainingJob
    world: World
    whole_network: nn.Module
    signature: Signature
    frozen: Frozen
    sync: Synchronizer
    passes: Passes
    batcher: Batcher
    loader: Loader
    training: Rows
    validation: Rows
    validation_rows: int
    """Over all workers."""
    scored: Sequence[HeadMetrics]
    """What is counted of each head."""
    groups: Sequence[Group]
    """The optimizer's parameter groups."""
    is_cached: bool
    """Whether the network is the tail of a larger one, and the rows are cached features."""
    key_sum: int
    """Of all rows of all workers, where checkpoints have to know one data set from another."""
    caching_seconds: float
    """Seconds of max_seconds that went into caching features, or into trying to."""

    @property
    def recipe(self) -> Recipe:
        """How to train."""
        return self.job.recipe

    @property
    def network(self) -> nn.Module:
        """The part of the network that this worker trains."""
        return self.sync.network

    @property
    def validates(self) -> bool:
        """Whether any worker has rows to validate on."""
        return self.validation_rows > 0

    def new_tally(self) -> Tally:
        """New sums of loss and metrics."""
        return Tally(self.scored, self.batcher.loss)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The metrics by their columns in the history."""
        return history_names(self.scored)

    def history_columns(
        self, prefix: str, tally: Tally, watch: StragglerWatch | None = None
    ) -> dict[str, float]:
        """Loss and metrics over all workers, as history columns; `watch` finds stragglers."""
        reduce_sums = self.sync.reduce_sums
        if watch is not None and self.world.size > 1:
            reduce_sums = partial(watch.reduce, reduce_sums)
        return tally.result(prefix, reduce_sums, self.world)

    def set_training_mode(self) -> None:
        """Put the network into training mode, except for frozen layers."""
        self.network.train()
        self.frozen.set_eval_mode()

    def unfreeze(self) -> None:
        """Let frozen layers learn from here on; every worker has to do this at the same update."""
        self.frozen.unfreeze()
        self.sync.update_trainable()

    def rows_at_once(self, rows: Rows, most: int, *, learning: bool = False) -> int:
        """How many of these rows fit in memory in one pass: a layer may enlarge them a lot."""
        if self.passes.is_collective:
            return self.recipe.batch_size
        some = next(self.loader.chunks(rows, PROBE_ROWS), None)
        if some is None:
            return most
        self.network.eval()
        with BatchSizing(self.network) as sizing, torch.no_grad(), self.passes.autocast():
            self.network(*self.batcher(some).arguments)
        return min(most, sizing.rows_that_fit(len(some), learning=learning))

    @cached_property
    def _validation_rows_at_once(self) -> int:
        return self.rows_at_once(self.validation, max(self.recipe.batch_size, 1024))

    def evaluate(self) -> dict[str, float]:
        """Loss and metrics of the rows to validate on."""
        tally = self.new_tally()
        self.network.eval()
        chunks = self._validation_chunks()
        for rows in self._same_count_on_all_workers(chunks):
            self.passes.evaluate(self.batcher(rows), tally)
        long_barrier(self.world.size)
        return self.history_columns("validation", tally)

    def _validation_chunks(self) -> Iterator[torch.Tensor]:
        """Rows to validate on: as many at once as fit, or the same batches on any workers."""
        if self.recipe.loss_scope == "row":
            return self.loader.chunks(self.validation, self._validation_rows_at_once)
        sizes = self.sync.reduce_sums(torch.tensor(self.validation.sizes)).numpy()
        world, recipe = self.world, self.recipe
        return Loader(
            self.batcher.shard,
            self.validation,
            sizes,
            rank=world.rank,
            size=world.size,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
        ).epoch(0)

    def _same_count_on_all_workers(self, chunks: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The chunks, and empty ones after them where passes are collective."""
        if not self.passes.is_collective:
            yield from chunks
            return
        own = list(chunks)
        counts = torch.zeros(self.world.size, dtype=torch.float64)
        counts[self.world.rank] = len(own)
        most = int(self.sync.reduce_sums(counts).max())
        yield from own
        yield from [torch.arange(0)] * (most - len(own))

    def report_stragglers(self, epoch: int, watch: StragglerWatch) -> None:
        """Tell the driver of workers that hold up the others."""
        for one in watch.found:
            self.emit(events.StragglerFound(epoch=epoch, rank=one.rank, times=one.times))

    def emit(self, event: events.Event) -> None:
        """Send an event to the driver, from rank 0 only."""
        if self.world.is_leader:
            self.world.link.tell(event)


def build_context(
    job: TrainingJob, world: World, trainable: Trainable, sync: Synchronizer
) -> TrainingContext:
    """Split the rows, and connect what is trained with the other workers."""
    recipe, frozen, shard = job.recipe, trainable.frozen, trainable.batcher.shard
    if not job.strategy.is_whole and world.size > 1:
        frozen.parameters.clear()  # the strategy has split them: don't keep the whole ones
    rows, validation = train_validation_split(
        shard, job.source.placement, trainable.rows, recipe.seed, job.held_out
    )
    counts = [*rows.sizes.tolist(), len(validation.numbers)]
    totals = sync.reduce_sums(torch.tensor(counts, dtype=torch.float64)).long()
    trained_by_name = trainable.whole_network if job.strategy.is_whole else sync.network
    learning_later = frozen.parameters if recipe.unfreeze_at else ()
    positions = None if recipe.shuffle else _positions(shard, validation, trainable.rows, sync)
    return TrainingContext(
        job=job,
        world=world,
        whole_network=trainable.whole_network,
        signature=trainable.signature,
        frozen=frozen,
        sync=sync,
        passes=_make_passes(job, world, trainable, sync, int(totals[:-1].sum())),
        batcher=trainable.batcher,
        loader=Loader(
            shard,
            rows,
            totals[:-1].numpy(),
            rank=world.rank,
            size=world.size,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            positions=positions,
        ),
        training=rows,
        validation=validation,
        validation_rows=int(totals[-1]),
        scored=trainable.scored,
        groups=groups(trained_by_name, recipe.learning_rate, recipe.learning_rates, learning_later),
        is_cached=trainable.is_cached,
        key_sum=_key_sum(shard, sync) if job.checkpoints else 0,
        caching_seconds=trainable.caching_seconds,
    )


def _key_sum(shard: Shard, sync: Synchronizer) -> int:
    """Modulo 2^64: it tells whether these are the same rows."""
    mine = shard.keys.astype(np.int64).sum(dtype=np.int64)
    return int(sync.reduce_sums(torch.tensor([mine], dtype=torch.int64)))


def _make_passes(
    job: TrainingJob, world: World, trainable: Trainable, sync: Synchronizer, rows: int
) -> Passes:
    recipe, batcher, example = job.recipe, trainable.batcher, trainable.example
    if sync.pipeline is not None:
        check_loss(sync.pipeline, batcher.loss, example)
        batch = max(1, min(recipe.batch_size, rows))
        return PipelinePasses(sync.pipeline, batcher.loss, recipe.precision, world.device, batch)
    batchwise = recipe.loss_scope == "batch" and world.size > 1
    if sync.is_collective or batchwise or trainable.passes.is_collective:
        # Real rows if there are any: at zero a gradient may be infinite, and 0 times that is NaN.
        own = torch.arange(min(example.rows, len(batcher.shard)))
        trainable.passes.make_collective(batcher(own) if len(own) else example)
    return trainable.passes


def _positions(shard: Shard, validation: Rows, rows: int, sync: Synchronizer) -> Array:
    """Each row's position among those to train on, over all workers."""

    def reduce_sums(mine: Array) -> Array:
        return sync.reduce_sums(torch.from_numpy(mine)).numpy()

    return positions_among_used(shard.keys, shard.keys[validation.numbers], rows, reduce_sums)


class Clock:
    """How long training has been going on, and whether it is time to report."""

    _REPORT_SECONDS = 0.25

    def __init__(self, limit: float | None, spent: float = 0.0) -> None:
        self._limit = limit
        self._spent = spent
        self._start = self._reported = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start

    @property
    def spent(self) -> float:
        """Seconds that count for the limit so far."""
        return self._spent + self.seconds

    @spent.setter
    def spent(self, seconds: float) -> None:
        self._spent = seconds - self.seconds

    def has_expired(self) -> bool:
        """Whether the limit has passed."""
        return self._limit is not None and self.spent > self._limit

    def should_report(self) -> bool:
        """Whether the last report is long enough ago; if so, this is one."""
        now = time.perf_counter()
        if now - self._reported < self._REPORT_SECONDS:
            return False
        self._reported = now
        return True
