"""Preflight: do rows, labels, network and loss fit each other? Asked before the first step.

Each worker sees only its own rows, so they share what they found: every worker then comes to the
same verdict, with counts over the whole data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from farandole.artifact import Signature, probe_signature
from farandole.data import Columns, Shard
from farandole.errors import InputError
from farandole.networks import (
    dtype_name,
    evaluation_mode,
    floating_dtype,
    named_outputs,
    varying_advice,
)
from farandole.parallel import convert_sync_batch_norm, gather_objects
from farandole.ragged import Ragged
from farandole.training import class_weights, events, losses, metrics
from farandole.training.batches import Batch, Batcher
from farandole.training.block_weights import add_block_weights
from farandole.training.embedding_inputs import id_problems
from farandole.training.freezing import Frozen
from farandole.training.head_checks import (
    check_metrics,
    label_facts,
    warn_if_batchwise,
    warn_if_binary,
    with_class_numbers,
)
from farandole.training.heads import LabelFacts, trained_heads
from farandole.training.job import TrainingJob
from farandole.training.losses import Loss
from farandole.training.metrics import HeadMetrics
from farandole.training.passes import NetworkPasses, make_passes
from farandole.training.row_reports import (
    LabelReport,
    RowReport,
    check_labels,
    even_labels,
    merge_reports,
    raise_for,
    with_fixed_labels,
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
    scored: Sequence[HeadMetrics] = ()
    """What is counted of each head."""
    caching_seconds: float = 0.0
    """How long it took to cache features, or to find out that they can't be cached."""
    is_cached: bool = False


def check(job: TrainingJob, world: World, shard: Shard) -> Trainable:
    """Raise, on all workers alike, if rows, network and loss don't fit each other."""
    recipe, columns = job.recipe, job.columns
    reports = gather_objects(RowReport.of(shard), world)
    report = merge_reports(reports, varying_advice(job.network))
    network = job.network.to(world.device)
    report = with_fixed_labels(shard, report, _labels_of_rows(network, columns, report))
    loss = losses.resolve(recipe.loss, recipe.loss_weights)
    facts = label_facts(loss, recipe.task, columns, shard, world)
    signature, loss = find_signature(network, columns, report, loss, recipe.task, facts)
    if recipe.sync_batch_norm:
        network = convert_sync_batch_norm(network, world)
    frozen = Frozen.of(network, recipe.freeze)
    _fill_empty(shard, report)
    weights = class_weights.find(job, signature, report, shard, world)
    scored = metrics.of_heads(recipe.metrics, loss)
    batcher = Batcher(shard, columns, signature, loss, weights, world.device)
    loss = with_class_numbers(batcher, network, recipe, world)
    batcher = replace(batcher, loss=loss)
    passes = make_passes(network, loss, recipe, world)
    example = replace(batcher, shard=zero_rows(report))(slice(None))
    with nullcontext() if recipe.solver() is None else _no_writes(example):
        dry_run(network, passes, example, loss)
    found = check_labels(shard, columns, loss, weighted=weights is not None)
    found.problems.extend(id_problems(network, example.arguments, shard, columns.features))
    _raise_for_labels(found, signature, world)
    check_metrics(scored, batcher, passes, network, world)
    warn_if_binary(loss, facts, world)
    warn_if_batchwise(recipe, batcher, passes, network, world)
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
        scored=scored,
    )


def _labels_of_rows(network: nn.Module, columns: Columns, report: RowReport) -> list[str]:
    """Labels of one length that are no labels of positions: their outputs aren't Ragged.

    Where the network gives Ragged, rows just happen to have one length.
    """
    even = even_labels(report, columns)
    if not even:
        return []
    _, outputs = probe_inputs(network, columns, report)
    found = named_outputs(outputs[0] if len(outputs) == 1 else tuple(outputs))
    by_order = dict(zip(columns.labels, found.values(), strict=False))
    return [name for name in even if not isinstance(found.get(name, by_order.get(name)), Ragged)]


def find_signature(
    network: nn.Module,
    columns: Columns,
    report: RowReport,
    loss: Loss,
    task: Any = "auto",
    facts: Mapping[str, LabelFacts] | None = None,
) -> tuple[Signature, Loss]:
    """Find out how the network takes these columns, and what it gives, by rows of zeros.

    Gives the signature, and the loss with the heads that the network turns out to have.
    """
    taken, outputs = probe_inputs(network, columns, report)
    output = outputs[0] if len(outputs) == 1 else tuple(outputs)
    bound = trained_heads(loss, task, output, columns, facts or {})
    if not columns.labels:
        _refuse_classes_of_numbers(bound, taken)
    return taken.with_heads([one.head for one in bound.heads]), bound


def _refuse_classes_of_numbers(loss: Loss, signature: Signature) -> None:
    """Raise where there is no label, and features that are no classes would be learned as such."""
    implied = loss.kind_of(0)
    numbers = signature.floated or signature.dtypes[0].startswith("float")
    if numbers and implied is not None and implied.head in ("softmax", "log_softmax"):
        raise InputError(
            "Without a label the network learns its features, and these are numbers, but the loss "
            "is one for classes. Use loss='mse', or a function of outputs and features."
        )


def probe_inputs(
    network: nn.Module, columns: Columns, report: RowReport
) -> tuple[Signature, list[Any]]:
    """Find out how the network takes these columns, and what it gives for rows of zeros."""
    signature = Signature(
        features=columns.features,
        shapes=tuple(report.shapes[name] for name in columns.features),
        dtypes=tuple(report.dtypes[name] for name in columns.features),
        head="identity",
        outputs=1,
        labels=columns.labels,
        floating=dtype_name(floating_dtype(network)),
    )
    return probe_signature(network, signature, report.sizes)


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
        if loss.callable is None and all(part.head for part in loss.parts):
            shapes = ", ".join(
                str(tuple(one.shape[1:]) if isinstance(one, torch.Tensor) else type(one).__name__)
                for one in batch.targets
            )
            raise InputError(
                "The loss can't take the network's outputs and the labels, which have the shape "
                f"{shapes} a row. It says: {error}{_positions_hint(batch)}"
            ) from error


def _positions_hint(batch: Batch) -> str:
    shapes = [one.shape for one in batch.targets if isinstance(one, torch.Tensor)]
    if all(len(shape) < 2 for shape in shapes):
        return ""
    return (
        ". Of a class for each position, torch wants the outputs as (rows, classes, positions): "
        "transpose(1, 2) makes that of (rows, positions, classes)"
    )


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
    given = [*batch.arguments, *batch.targets]
    parts = [one.values if isinstance(one, Ragged) else one for one in given]
    return [part._version for part in parts if isinstance(part, torch.Tensor)]


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
