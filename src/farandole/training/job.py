"""TrainingJob: what a worker is told before training. Outcome: what it returns."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.checkpoint import CheckpointDirectory
from farandole.data import Columns, Fold, Source, Storage, is_list
from farandole.errors import InputError
from farandole.networks import dtype_name, floating_dtype, ragged_axes, takes_gray, wrapping_advice
from farandole.parallel import Span, Strategy
from farandole.training.recipe import Recipe

INTERRUPTED = "interrupted"
LOSS_DIVERGED = "the loss became NaN or infinite"
WEIGHTS_DIVERGED = "weights became NaN or infinite"
PREEMPTED = "the system told a worker to end"
REJOINED = "more workers can take part"
UNFINISHED = (INTERRUPTED, LOSS_DIVERGED, WEIGHTS_DIVERGED, PREEMPTED, REJOINED)
"""Reasons to end in the middle of an epoch: the network is that of an epoch before."""
TIME_UP = "max_seconds reached"


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """Where checkpoints are written, how often, and which one to go on from."""

    url: str
    steps: int | None = None
    """Updates from one checkpoint to the next."""
    seconds: float | None = None
    keep_last: int = 2
    keep_best: int = 0
    higher_is_better: bool = False
    """Which scores are the best ones."""
    run: str = ""
    """The name of the run, by which workers know that they see the driver's directory."""
    layers: tuple[str, ...] = ()
    """What the network is made of."""
    resumed: int | None = None
    """The update of the checkpoint that training goes on from; None to begin."""

    @property
    def directory(self) -> CheckpointDirectory:
        """The directory, for whoever is here."""
        return CheckpointDirectory(
            self.url,
            keep_last=self.keep_last,
            keep_best=self.keep_best,
            higher_is_better=self.higher_is_better,
            run=self.run,
        )


@dataclass(frozen=True)
class TrainingJob:
    """All that a worker is told."""

    network: nn.Module
    recipe: Recipe
    columns: Columns
    source: Source
    storage: Storage
    strategy: Strategy
    validation: float | None = None
    """The fraction of rows to hold out, where no column marks them."""
    trace: bool = False
    """Whether to record what the worker does, and when."""
    checkpoints: CheckpointPlan | None = None
    asks_driver: bool = False
    """Whether to ask the driver between epochs whether to go on, and how fast to learn."""
    sends_weights: bool = False
    """Whether the driver gets the weights with each such question."""

    @property
    def held_out(self) -> str | float | Fold | None:
        """Which rows to validate on: the column that marks them, a fold of it, or a fraction."""
        marked, fold = self.columns.validation, self.columns.fold
        if marked is not None and fold is not None:
            return Fold(marked, fold)
        return marked or self.validation


@dataclass
class LoopState:
    """How far training has come, and why it ended."""

    history: list[dict[str, float]] = field(default_factory=list)
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    """(epoch, learning rate, loss) of every update."""
    update: int = 0
    reason: str = "all epochs done"


@dataclass(frozen=True)
class Outcome:
    """What rank 0 returns; of the other workers only their timings and sizes."""

    seconds: dict[str, float]
    signature: Signature | None = None
    state: dict[str, torch.Tensor] | None = None
    progress: LoopState = field(default_factory=LoopState)
    input_error: InputError | None = None
    """Why there was no first step. All workers come to the same verdict, so it is a result like any
    other: raised inside of Spark it would be hidden in the JVM's trace, and end Python workers."""
    sent: int = 0
    """Bytes of gradients and parameters that went to other workers."""
    memory: int = 0
    """The most bytes that the process has had in memory so far."""
    spans: list[Span] | None = None


def storage_for(network: nn.Module, columns: Columns, schema: pa.Schema) -> Storage:
    """How the network wants its columns kept; raises if it wants what they can't be.

    Its attribute `ragged_axes` says for each feature how many leading axes of a row may vary in
    size, and `channels`, where that is 1, that images are to be gray.
    """
    axes = ragged_axes(network) or (0,) * len(columns.features)
    if len(axes) != len(columns.features):
        raise InputError(
            f"The network's ragged_axes are for {len(axes)} feature columns: {axes}. Received "
            f"{len(columns.features)}: {', '.join(columns.features)}"
        )
    if len(set(zip(columns.features, axes, strict=True))) > len(set(columns.features)):
        raise InputError(f"One feature column can't vary in two ways: {columns.features}, {axes}")
    _check_types(network, columns, schema, axes)
    vary = {name: n for name, n in zip(columns.features, axes, strict=True) if n}
    if set(axes) == {1}:  # rows that vary in length may have a label for each of their elements
        lists = [name for name in columns.labels if is_list(schema.field(name).type)]
        vary |= dict.fromkeys(lists, 1)
    return Storage(dtype_name(floating_dtype(network)), vary, takes_gray(network))


def _check_types(
    network: nn.Module, columns: Columns, schema: pa.Schema, axes: Sequence[int]
) -> None:
    try:
        columns.check(schema, axes)
    except InputError:
        columns.check(schema)  # what no network takes is wrong for another reason
        advice = wrapping_advice(network)
        if not advice:
            raise
        names = ", ".join(columns.features)
        raise InputError(f"The network can't take the feature columns {names}. {advice}") from None


def peak_memory() -> int:
    """The most bytes that this process has had in memory.

    >>> peak_memory() > 10_000_000
    True
    """
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had, when it started this process
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
