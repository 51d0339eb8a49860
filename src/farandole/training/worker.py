"""What a worker does to train: load its shard, check it with the others, run the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data import Array, Loader, Rows, Shard, positions_among_used, split, write_shard
from farandole.errors import InputError
from farandole.parallel import Span, Synchronizer, trace
from farandole.training import events, losses, metrics
from farandole.training.checked import Checked, check
from farandole.training.denormals import flushed
from farandole.training.freezing import Frozen
from farandole.training.fullbatch import FullBatchLoop
from farandole.training.job import Outcome, TrainingJob, peak_memory
from farandole.training.layers import learning_layers
from farandole.training.loop import Loop
from farandole.training.optimizers import groups
from farandole.training.piped import PipedStepper, check_loss
from farandole.training.recipe import Recipe
from farandole.training.stage import Stage
from farandole.training.step import Passes
from farandole.world import World


def load(job: TrainingJob, rank: int, size: int, fed: Iterator[pa.RecordBatch]) -> Shard:
    """Drain this worker's rows into its shard."""
    # torch.optim imports this on first use, which takes over a second: do it while rows arrive.
    threading.Thread(target=import_module, args=("torch._dynamo",), daemon=True).start()
    names = job.columns.names
    return write_shard(job.source.batches(rank, size, names, fed), names, job.storage)


def work(job: TrainingJob, world: World, shard: Shard) -> Outcome:
    """Train, as a member of the ring."""
    start = time.perf_counter()
    spans: list[Span] | None = [] if job.trace else None
    with torch.random.fork_rng(devices=[]):  # the caller's own random numbers stay as they were
        torch.manual_seed(job.recipe.seed + world.rank)
        try:
            made = _prepare(job, world, shard)
            prepared = time.perf_counter()
        except InputError as refusal:
            shard.close()
            return Outcome(dict(world.seconds), refusal=refusal.with_traceback(None))
        try:
            with flushed(), trace.recorded(spans):
                progress = made.loop.run()
                ended = time.perf_counter()
                state = made.sync.gather(made.network)
        finally:
            shard.close()
            made.frozen.thaw()
            sent = made.sync.sent
            made.sync.close()
    checked = prepared - start - sum(made.seconds.values())
    seconds = {**world.seconds, "check": checked, **made.seconds, "train": ended - prepared}
    facts: Any = {"sent": sent, "memory": peak_memory(), "spans": spans}
    if not world.is_leader:
        return Outcome(seconds, **facts)
    world.link.tell(events.TrainingEnded(reason=progress.reason, seconds=ended - prepared))
    return Outcome(seconds, made.signature, state, progress, **facts)


@dataclass(frozen=True)
class _Prepared:
    loop: Loop | FullBatchLoop
    network: nn.Module
    signature: Signature
    frozen: Frozen
    sync: Synchronizer
    seconds: dict[str, float]
    """Of what was more than a check."""


def _prepare(job: TrainingJob, world: World, shard: Shard) -> _Prepared:
    """Check what all workers have, put the parts together, and say so."""
    checked = check(job, world, shard)
    sync = job.strategy.attach(checked.learner.network, world, checked.example.arguments)
    try:
        return _build(job, world, checked, sync)
    except InputError as error:
        refusal = error
    # Not while the error is on its way: a strategy would take that for a failure, whereas all
    # workers have come to the same refusal, and are there to take leave of each other.
    sync.close()
    raise refusal


def _build(job: TrainingJob, world: World, checked: Checked, sync: Synchronizer) -> _Prepared:
    """Put a loop together, with everything that it stands on."""
    frozen, learner, solver = checked.frozen, checked.learner, job.recipe.solver()
    if not job.strategy.is_whole and world.size > 1:
        frozen.parameters.clear()  # they were taken apart: nothing may hold them as they were
    stage = _stage(job, world, checked, sync)
    loop = Loop(stage) if solver is None else FullBatchLoop(stage, solver)
    _announce(stage, checked.network, job.held_out)
    return _Prepared(loop, checked.network, checked.signature, frozen, stage.sync, learner.seconds)


def _stage(job: TrainingJob, world: World, checked: Checked, sync: Synchronizer) -> Stage:
    """What the loop stands on: the rows parted, what learns in step with the other workers'."""
    recipe, learner, frozen = job.recipe, checked.learner, checked.frozen
    placement, every = job.source.placement, checked.report.rows
    rows, validation = split(learner.shard, placement, every, recipe.seed, job.held_out)
    counts = [*rows.sizes.tolist(), len(validation.numbers)]
    totals = sync.reduce_sums(torch.tensor(counts, dtype=torch.float64)).long()
    named = checked.network if job.strategy.is_whole else sync.network
    later = frozen.parameters if recipe.unfreeze_at else ()
    ordered = None if recipe.shuffle else _positions(learner.shard, validation, every, sync)
    return Stage(
        network=sync.network,
        recipe=recipe,
        metrics=metrics.resolve(recipe.metrics, losses.resolve(recipe.loss)),
        world=world,
        sync=sync,
        stepper=_passes(checked, sync, recipe, world, int(totals[:-1].sum())),
        batcher=learner.batcher,
        loader=_loader(learner.shard, rows, totals[:-1], recipe, world, ordered),
        training=rows,
        validation=validation,
        validation_rows=int(totals[-1]),
        head=learner.batcher.head,
        frozen=frozen,
        groups=groups(named, recipe.learning_rate, recipe.learning_rates, later),
        spent=learner.spent,
    )


def _loader(
    shard: Shard,
    rows: Rows,
    sizes: torch.Tensor,
    recipe: Recipe,
    world: World,
    positions: Array | None,
) -> Loader:
    return Loader(
        shard,
        rows,
        sizes.numpy(),
        rank=world.rank,
        size=world.size,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        positions=positions,
    )


def _passes(
    checked: Checked, sync: Synchronizer, recipe: Recipe, world: World, rows: int
) -> Passes:
    learner, example = checked.learner, checked.example
    if sync.pipeline is not None:
        loss = losses.resolve(recipe.loss)
        check_loss(sync.pipeline, loss, example)
        batch = max(1, min(recipe.batch_size, rows))
        return PipedStepper(sync.pipeline, loss, recipe.precision, world.device, batch)
    if sync.is_joint:
        # Real rows if there are any: zeros may be where a gradient is infinite, and 0 of that NaN.
        own = torch.arange(min(example.rows, len(learner.shard)))
        learner.stepper.join(learner.batcher(own) if len(own) else example)
    return learner.stepper


def _positions(shard: Shard, validation: Rows, rows: int, sync: Synchronizer) -> Array:
    """Where each row stands among those to train on, over all workers."""

    def reduce_sums(mine: Array) -> Array:
        return sync.reduce_sums(torch.from_numpy(mine)).numpy()

    return positions_among_used(shard.keys, shard.keys[validation.numbers], rows, reduce_sums)


def _announce(stage: Stage, network: nn.Module, held_out: Any) -> None:
    """The last words before step 1."""
    rows, world, recipe = stage.loader.total, stage.world, stage.recipe
    if rows == 0:
        raise InputError(
            f"All {stage.validation_rows:,} rows are for validation: none is left to train on."
        )
    if held_out and not stage.validates:
        stage.tell(events.Caution(message="No row was chosen for validation, so there is none."))
    if rows < world.size:
        idle = f"at least {world.size - rows} of them have nothing to do."
        stage.tell(
            events.Caution(message=f"There are {rows} rows for {world.size} workers: {idle}")
        )
    learning = sum(p.numel() for p in network.parameters() if p.requires_grad)
    updates = 1 if recipe.solver() else -(-stage.loader.steps // recipe.accumulation)
    stage.tell(
        events.TrainingStarted(
            rows=rows,
            validation_rows=stage.validation_rows,
            workers=world.size,
            epochs=recipe.epochs,
            steps_per_epoch=updates,
            parameters=sum(p.numel() for p in network.parameters()),
            learning=learning if recipe.freeze else None,
            layers=tuple(learning_layers(network)) if recipe.freeze else (),
        )
    )
