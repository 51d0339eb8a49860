"""What a worker does to train: load its shard, check it with the others, run the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data.loader import Loader, Rows, split
from farandole.data.order import Array, positions_among_used
from farandole.data.shards import Shard, write_shard
from farandole.errors import InputError
from farandole.networks.declared import varying_advice
from farandole.parallel.base import Synchronizer
from farandole.parallel.normalization import synchronize
from farandole.parallel.trace import Span, recorded
from farandole.training import events, losses, metrics
from farandole.training.blocks import weighted_by_block
from farandole.training.cached import Body
from farandole.training.denormals import flushed
from farandole.training.examination import (
    LabelReport,
    Report,
    check_reports,
    everybody,
    examine_labels,
    raise_for,
    rehearse,
    sign,
    zero_rows,
)
from farandole.training.freezing import Frozen
from farandole.training.fullbatch import FullBatchLoop, untouched
from farandole.training.job import Outcome, TrainingJob, peak_memory
from farandole.training.layers import learning_layers
from farandole.training.learner import Learner
from farandole.training.loop import Loop
from farandole.training.optimizers import groups
from farandole.training.piped import PipedStepper, check_loss
from farandole.training.recipe import Recipe
from farandole.training.stage import Stage
from farandole.training.step import Batch, Batcher, Passes, Stepper
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
            with flushed(), recorded(spans):
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
    recipe, columns = job.recipe, job.columns
    loss = losses.resolve(recipe.loss)
    report = check_reports(everybody(Report.of(shard), world.size), varying_advice(job.network))
    network = job.network.to(world.device)
    signature, widths = sign(network, columns, report, loss)
    if recipe.sync_batch_norm:
        network = synchronize(network, world)
    frozen = Frozen.of(network, recipe.freeze)
    _fill_empty(shard, report)
    weights = _class_weights(recipe, signature, report)
    batcher = partial(
        Batcher,
        columns=columns,
        signature=signature,
        loss=loss,
        class_weights=weights,
        device=world.device,
    )
    stepper = Stepper(network, loss, recipe.precision, world.device)
    solver = recipe.solver()
    zeros = zero_rows(report)
    rehearsed = batcher(zeros)(torch.arange(len(zeros)))
    with nullcontext() if solver is None else untouched(rehearsed):
        rehearse(network, stepper, rehearsed, loss)
    found = examine_labels(shard, columns, loss, widths, weighted=weights is not None)
    _check_labels(found, signature, world)
    held_out = columns.validation or job.validation
    if solver and solver.block_size and not columns.weight and not held_out:
        columns = weighted_by_block(shard, columns, solver.block_size, world)
    batches = batcher(shard, columns=columns)
    body = Body(network, frozen, stepper, shard, columns, batches, world, recipe.max_seconds)
    parts = not job.strategy.is_whole
    learner = Learner.of(body, recipe, signature, loss, batcher, whole_only=parts)
    stage = _stage(job, world, report, network, learner, frozen, rehearsed)
    loop = Loop(stage) if solver is None else FullBatchLoop(stage, solver)
    _announce(stage, network, held_out)
    return _Prepared(loop, network, signature, frozen, stage.sync, learner.seconds)


def _stage(
    job: TrainingJob,
    world: World,
    report: Report,
    network: nn.Module,
    learner: Learner,
    frozen: Frozen,
    example: Batch,
) -> Stage:
    """What the loop stands on: the rows parted, what learns in step with the other workers'."""
    recipe, shard = job.recipe, learner.shard
    held_out = job.columns.validation or job.validation
    rows, validation = split(shard, job.source.placement, report.rows, recipe.seed, held_out)
    sync = job.strategy.attach(learner.network, world, example.arguments)
    if not job.strategy.is_whole and world.size > 1:
        frozen.parameters.clear()  # they were taken apart: nothing may hold them as they were
    counts = [*rows.sizes.tolist(), len(validation.numbers)]
    totals = sync.reduce_sums(torch.tensor(counts, dtype=torch.float64)).long()
    named = network if job.strategy.is_whole else sync.network
    later = frozen.parameters if recipe.unfreeze_at else ()
    return Stage(
        network=sync.network,
        recipe=recipe,
        metrics=metrics.resolve(recipe.metrics, losses.resolve(recipe.loss)),
        world=world,
        sync=sync,
        stepper=_passes(learner.stepper, sync, recipe, world, example, int(totals[:-1].sum())),
        batcher=learner.batcher,
        loader=Loader(
            shard,
            rows,
            totals[:-1].numpy(),
            rank=world.rank,
            size=world.size,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            positions=None if recipe.shuffle else _positions(shard, validation, report.rows, sync),
        ),
        training=rows,
        validation=validation,
        validation_rows=int(totals[-1]),
        head=learner.batcher.head,
        frozen=frozen,
        groups=groups(named, recipe.learning_rate, recipe.learning_rates, later),
        spent=learner.spent,
    )


def _passes(
    stepper: Stepper, sync: Synchronizer, recipe: Recipe, world: World, example: Batch, rows: int
) -> Passes:
    if sync.pipe is not None:
        loss = losses.resolve(recipe.loss)
        check_loss(sync.pipe, loss, example)
        batch = max(1, min(recipe.batch_size, rows))
        return PipedStepper(sync.pipe, loss, recipe.precision, world.device, batch)
    stepper.is_joint = stepper.is_joint or sync.is_joint
    return stepper


def _positions(shard: Shard, validation: Rows, rows: int, sync: Synchronizer) -> Array:
    """Where each row stands among those to train on, over all workers."""

    def reduce_sums(mine: Array) -> Array:
        return sync.reduce_sums(torch.from_numpy(mine)).numpy()

    return positions_among_used(shard.keys, shard.keys[validation.numbers], rows, reduce_sums)


def _class_weights(recipe: Recipe, signature: Signature, report: Report) -> list[float] | None:
    weights = losses.class_weights_of(recipe.loss)
    if recipe.class_weights is not None:
        weights = [float(weight) for weight in recipe.class_weights]
    if weights is None:
        return None
    if not signature.is_classifier:
        raise InputError("class_weights need a loss for classes, such as cross_entropy.")
    shape = report.shapes[signature.labels[0]]
    if shape != ():
        raise InputError(
            f"class_weights need one class a row, but column {signature.labels[0]!r} has the shape "
            f"{shape} a row: probabilities of classes, or a class for each position. Use a weight "
            "column, or a loss of your own."
        )
    if len(weights) != signature.num_classes:
        raise InputError(
            f"There are {len(weights)} class weights for {signature.num_classes} classes."
        )
    return weights


def _check_labels(mine: LabelReport, signature: Signature, world: World) -> None:
    reports = everybody(mine, world.size)
    raise_for([bad for report in reports for bad in report.problems])
    classes = set().union(*(report.classes for report in reports))
    if signature.is_classifier and len(classes) == 1:
        message = f"All labels are {classes.pop()}: there is only one class to learn."
        if world.is_leader:
            world.link.tell(events.Caution(message=message))


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


def _fill_empty(shard: Shard, report: Report) -> None:
    """A worker without rows, or without elements, learns from the others how they would look."""
    nothing = zero_rows(report, 0)
    if len(shard) == 0:
        shard.columns.update(nothing.columns)
        shard.ragged.update(nothing.ragged)
    for name, column in shard.ragged.items():
        if len(column.values) == 0:
            shard.ragged[name] = replace(column, values=nothing.ragged[name].values)
