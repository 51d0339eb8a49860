"""Preflight: do rows, labels, network and loss fit each other? Asked before the first step.

Each worker sees only its own rows, so they share what they found: every worker then comes to the
same verdict, with counts over the whole data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from torch import nn

from farandole.artifact import Signature, probe_signature
from farandole.data import Columns, Shard
from farandole.errors import InputError
from farandole.networks import dtype_name, evaluation_mode, floating_dtype, varying_advice
from farandole.parallel import convert_sync_batch_norm, gather_objects
from farandole.ragged import Ragged
from farandole.training import events, losses
from farandole.training.batches import Batch, Batcher
from farandole.training.block_weights import add_block_weights
from farandole.training.freezing import Frozen
from farandole.training.job import TrainingJob
from farandole.training.losses import Loss
from farandole.training.passes import NetworkPasses
from farandole.training.recipe import Recipe
from farandole.training.row_reports import (
    LabelReport,
    RowReport,
    check_labels,
    merge_reports,
    raise_for,
    zero_rows,
)
from farandole.world import World


@dataclass(frozen=True)
class Trainable:
    """A network that fits its rows, on all workers."""

    whole_network: nn.Module
    network: nn.Module
    """What is trained: the whole network, or its tail behind frozen layers with cached features."""
    frozen: Frozen
    signature: Signature
    """How the whole network takes its rows."""
    rows: int
    """Over all workers."""
    batcher: Batcher
    passes: NetworkPasses
    example: Batch
    """Rows like those of the data set, all zero."""
    caching_seconds: float = 0.0
    """How long it took to cache features, or to find out that they can't be cached."""
    is_cached: bool = False


def check(job: TrainingJob, world: World, shard: Shard) -> Trainable:
    """Raise, on all workers alike, if rows, network and loss don't fit each other."""
    recipe, columns, loss = job.recipe, job.columns, losses.resolve(job.recipe.loss)
    reports = gather_objects(RowReport.of(shard), world)
    report = merge_reports(reports, varying_advice(job.network))
    network = job.network.to(world.device)
    signature, widths = find_signature(network, columns, report, loss)
    if recipe.sync_batch_norm:
        network = convert_sync_batch_norm(network, world)
    frozen = Frozen.of(network, recipe.freeze)
    _fill_empty(shard, report)
    weights = _class_weights(recipe, signature, report)
    batcher = Batcher(shard, columns, signature, loss, weights, world.device)
    passes = NetworkPasses(network, loss, recipe.precision, world.device)
    example = replace(batcher, shard=zero_rows(report))(slice(None))
    with nullcontext() if recipe.solver() is None else _no_writes(example):
        dry_run(network, passes, example, loss)
    found = check_labels(shard, columns, loss, widths, weighted=weights is not None)
    _raise_for_labels(found, signature, world)
    batcher = replace(batcher, columns=_with_block_weights(job, shard, world))
    return Trainable(
        whole_network=network,
        network=network,
        frozen=frozen,
        signature=signature,
        rows=report.rows,
        batcher=batcher,
        passes=passes,
        example=example,
    )


def find_signature(
    network: nn.Module, columns: Columns, report: RowReport, loss: Loss
) -> tuple[Signature, list[int]]:
    """Find out how the network takes these columns, by giving it rows of zeros.

    Gives the signature, and how many values a row each of the network's outputs has.
    """
    signature = Signature(
        features=columns.features,
        shapes=tuple(report.shapes[name] for name in columns.features),
        dtypes=tuple(report.dtypes[name] for name in columns.features),
        head=loss.head,
        outputs=1,
        labels=columns.labels,
        floating=dtype_name(floating_dtype(network)),
    )
    taken, outputs = probe_signature(network, signature, report.sizes)
    widths = [int(one.shape[1]) if one.dim() > 1 else 1 for one in outputs]
    head = "sigmoids" if loss.head == "sigmoid" and widths[0] > 1 else loss.head
    return replace(taken, outputs=widths[0], head=head), widths


def dry_run(network: nn.Module, passes: NetworkPasses, batch: Batch, loss: Loss) -> None:
    """Put a batch of zeros through network and loss, and raise if they don't fit each other.

    A user's own loss may refuse zeros for reasons of its own: only our own errors count there.
    """
    try:
        with evaluation_mode(network):
            passes.forward(batch)
    except InputError:
        raise
    except Exception as error:
        if loss.callable is None:
            shapes = ", ".join(str(tuple(target.shape[1:])) for target in batch.targets)
            raise InputError(
                "The loss can't take the network's outputs and the labels, which have the shape "
                f"{shapes} a row. It says: {error}"
            ) from error


@contextmanager
def _no_writes(batch: Batch) -> Iterator[None]:
    """Raise if the body writes to the batch: a full-batch solver gives the shard's rows themselves.

    Mini-batches are copies, but a full batch is a view of the shard.
    """
    before = _versions(batch)
    yield
    if _versions(batch) != before:
        raise InputError(
            "The network or the loss changes its input in place (inplace=True, x += …), which a "
            "full-batch solver can't allow: let its first layer make a new tensor."
        )


def _versions(batch: Batch) -> list[int]:
    """What torch counts up whenever a tensor is written to."""
    parts = [one.values if isinstance(one, Ragged) else one for one in batch.arguments]
    return [part._version for part in [*parts, *batch.targets]]


def _class_weights(recipe: Recipe, signature: Signature, report: RowReport) -> list[float] | None:
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


def _raise_for_labels(mine: LabelReport, signature: Signature, world: World) -> None:
    reports = gather_objects(mine, world)
    raise_for([bad for report in reports for bad in report.problems])
    classes = set().union(*(report.classes for report in reports))
    if signature.is_classifier and len(classes) == 1:
        message = f"All labels are {classes.pop()}: there is only one class to learn."
        if world.is_leader:
            world.link.tell(events.WarningIssued(message=message))


def _with_block_weights(job: TrainingJob, shard: Shard, world: World) -> Columns:
    """The columns, with one of weights where the solver weights whole blocks of rows."""
    solver = job.recipe.solver()
    if solver is None or not solver.block_size or job.columns.weight or job.held_out:
        return job.columns
    return add_block_weights(shard, job.columns, solver.block_size, world)


def _fill_empty(shard: Shard, report: RowReport) -> None:
    """Give a worker without rows, or without elements, columns of the others' shapes and types."""
    nothing = zero_rows(report, 0)
    if len(shard) == 0:
        shard.columns.update(nothing.columns)
        shard.ragged.update(nothing.ragged)
    for name, column in shard.ragged.items():
        if len(column.values) == 0:
            shard.ragged[name] = replace(column, values=nothing.ragged[name].values)
