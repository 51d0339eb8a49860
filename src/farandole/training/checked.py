"""Checked: rows, network and loss that fit each other, on all workers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from farandole.artifact import Signature
from farandole.data import Columns, Shard
from farandole.errors import InputError
from farandole.networks import varying_advice
from farandole.parallel import convert_sync_batch_norm
from farandole.training import events, losses
from farandole.training.blocks import weighted_by_block
from farandole.training.cached import Body
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
from farandole.training.fullbatch import untouched
from farandole.training.job import TrainingJob
from farandole.training.learner import Learner
from farandole.training.recipe import Recipe
from farandole.training.step import Batch, Batcher, Stepper
from farandole.world import World


@dataclass(frozen=True)
class Checked:
    """What all workers have found to be in order."""

    network: nn.Module
    signature: Signature
    frozen: Frozen
    report: Report
    example: Batch
    """Rows like those of the data set, all zero."""
    learner: Learner


def check(job: TrainingJob, world: World, shard: Shard) -> Checked:
    """Raise, on all workers alike, if what they have doesn't fit; else say what it is."""
    recipe, columns = job.recipe, job.columns
    loss = losses.resolve(recipe.loss)
    report = check_reports(everybody(Report.of(shard), world.size), varying_advice(job.network))
    network = job.network.to(world.device)
    signature, widths = sign(network, columns, report, loss)
    if recipe.sync_batch_norm:
        network = convert_sync_batch_norm(network, world)
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
    example = _rehearsed(recipe, network, stepper, batcher(zero_rows(report)))
    found = examine_labels(shard, columns, loss, widths, weighted=weights is not None)
    _check_labels(found, signature, world)
    columns = _weighted(job, shard, world)
    batches = batcher(shard, columns=columns)
    body = Body(network, frozen, stepper, shard, columns, batches, world, recipe.max_seconds)
    parts = not job.strategy.is_whole
    learner = Learner.of(body, recipe, signature, loss, batcher, whole_only=parts)
    return Checked(network, signature, frozen, report, example, learner)


def _rehearsed(recipe: Recipe, network: nn.Module, stepper: Stepper, batcher: Batcher) -> Batch:
    """A batch of zeros that has been through network and loss."""
    example = batcher(slice(None))
    with nullcontext() if recipe.solver() is None else untouched(example):
        rehearse(network, stepper, example, losses.resolve(recipe.loss))
    return example


def _weighted(job: TrainingJob, shard: Shard, world: World) -> Columns:
    """The columns, with one of weights where the solver weights whole blocks of rows."""
    solver = job.recipe.solver()
    if solver is None or not solver.block_size or job.columns.weight or job.held_out:
        return job.columns
    return weighted_by_block(shard, job.columns, solver.block_size, world)


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


def _fill_empty(shard: Shard, report: Report) -> None:
    """A worker without rows, or without elements, learns from the others how they would look."""
    nothing = zero_rows(report, 0)
    if len(shard) == 0:
        shard.columns.update(nothing.columns)
        shard.ragged.update(nothing.ragged)
    for name, column in shard.ragged.items():
        if len(column.values) == 0:
            shard.ragged[name] = replace(column, values=nothing.ragged[name].values)
