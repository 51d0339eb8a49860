"""The first rows through network and loss, on the driver: what doesn't fit is told at once.

`preflight` asks the same of all rows, when the workers have read them, which may take long.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from farandole.artifact import Signature, why_unsaveable
from farandole.data import Shard, write_shard
from farandole.errors import InputError
from farandole.networks import chosen_output, evaluation_mode
from farandole.ragged import Ragged
from farandole.training import losses
from farandole.training.batches import Batcher
from farandole.training.embedding_inputs import embedding_refusal, has_embeddings
from farandole.training.job import TrainingJob
from farandole.training.losses import Loss
from farandole.training.passes import NetworkPasses
from farandole.training.preflight import dry_run, find_signature, probe_inputs
from farandole.training.random_states import random_states_kept
from farandole.training.row_reports import RowReport, zero_rows


@dataclass(frozen=True)
class DryRun:
    """What the first rows have told of a network."""

    network: nn.Module
    """The one that was tried: of lazy layers a copy, which has its sizes now."""
    signature: Signature
    """How it takes its rows; its heads may not be known yet."""
    has_heads: bool = False
    """Whether they are known."""
    doubts: Sequence[str] = ()
    """What may be wrong."""

    def why_unsaveable(self) -> str:
        """Why the network could be saved as a pickle only; "" if it can be saved as data."""
        with random_states_kept():
            return why_unsaveable(self.network, self.signature)


_OF_DEVICES = re.compile(r"cuda|nvidia|\bcpu\b|device|not implemented for", re.IGNORECASE)
"""Words of errors that a network may not give where it is trained."""


def try_network(job: TrainingJob, rows: pa.RecordBatch, device: str = "cpu") -> DryRun | None:
    """Raise an InputError if the network can't take rows like these; None if that can't be told.

    Rows that can't be used are left to the workers, who count them over the whole data set. So is
    a network that refuses the CPU, on which it is tried, where workers may have another `device`.
    """
    with random_states_kept():
        shard = write_shard([rows], job.columns.names, job.storage)
        try:
            report = RowReport.of(shard)
            return _try(job, shard, report) if report.shapes else None
        except InputError as error:
            if device != "cpu" and _OF_DEVICES.search(str(error.__cause__ or "")):
                return None
            raise
        finally:
            shard.close()


def _try(job: TrainingJob, shard: Shard, report: RowReport) -> DryRun:
    columns, recipe = job.columns, job.recipe
    network = _untouched(job.network)
    try:
        signature, _ = probe_inputs(network, columns, report)
    except InputError:
        refusal = embedding_refusal(network, columns.features, shard)
        if refusal is not None:
            raise refusal from None
        raise
    if has_embeddings(network):
        refusal = embedding_refusal(network, columns.features, shard, signature)
        if refusal is not None:
            raise refusal
    loss = losses.resolve(recipe.loss, recipe.loss_weights)
    if loss.callable is not None or any(name in report.sizes for name in columns.labels):
        return DryRun(network, signature)  # what is to be learned then depends on all labels
    unknown = any(part.head is None for part in loss.parts)
    try:
        signature, loss = find_signature(network, columns, report, loss, recipe.task)
    except InputError:
        if unknown:  # so does what a head with a function of its own learns
            return DryRun(network, signature)
        raise
    example = Batcher(zero_rows(report), columns, signature, loss, None, "cpu")(slice(None))
    if not unknown:
        dry_run(network, NetworkPasses(network, loss, recipe.precision, "cpu"), example, loss)
    with evaluation_mode(network), torch.enable_grad():
        doubts = _doubts(network(*example.arguments), loss)
        return DryRun(network, signature, has_heads=not unknown, doubts=doubts)


def _untouched(network: nn.Module) -> nn.Module:
    """The network itself, or a copy where the first batch would give layers their sizes."""
    lazy = any(is_lazy(one) for one in (*network.parameters(), *network.buffers()))
    return copy.deepcopy(network) if lazy else network


_ENDINGS = {
    "sigmoid": {"SigmoidBackward0": "sigmoid"},
    "softmax": {"SoftmaxBackward0": "softmax"},
}
"""What a loss does itself, by its head, and the last step of a network that has done it before."""

_LOOKS = ("View", "Reshape", "Squeeze", "Unsqueeze", "Alias", "ToCopy", "Clone", "Select", "Slice")
"""Steps that give the same numbers in another shape or type."""


def _doubts(output: Any, loss: Loss) -> list[str]:
    """What a loss and the last step of the network would do twice, for each head."""
    doubts = []
    for number, trained in enumerate(loss.heads):
        part, head = loss.part_of(number), trained.head
        last = _last_step(chosen_output(output, head.output))
        repeated = _ENDINGS.get(part.head or "", {}).get(last) if part is not None else None
        if repeated:
            where = f"The head {head.name!r}" if head.name else "The network"
            doubts.append(
                f"{where} ends in a {repeated}, and so does the loss, which takes its outputs "
                "before that (logits): applied twice, it hardly learns. Leave the network's last "
                f"{repeated} out; predictions have it anyway."
            )
    return doubts


def _last_step(output: Any) -> str:
    """The name of the operation that made an output's numbers."""
    values = output.values if isinstance(output, Ragged) else output
    step = values.grad_fn
    while step is not None and step.name().startswith(_LOOKS):
        step = next((before for before, _ in step.next_functions if before is not None), None)
    return "" if step is None else str(step.name())
