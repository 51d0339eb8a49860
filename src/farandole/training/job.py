"""What a worker is told before training, and what it brings home."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data import Columns, Source, Storage
from farandole.errors import InputError
from farandole.parallel import Span, Strategy
from farandole.training.loop import Progress
from farandole.training.recipe import Recipe


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

    @property
    def held_out(self) -> str | float | None:
        """Which rows are to validate on: a column says so, or they are a fraction."""
        return self.columns.validation or self.validation


@dataclass(frozen=True)
class Outcome:
    """What the leader brings home; the others bring only their timings."""

    seconds: dict[str, float]
    signature: Signature | None = None
    state: dict[str, torch.Tensor] | None = None
    progress: Progress = field(default_factory=Progress)
    refusal: InputError | None = None
    """Why there was no step 1. All workers come to the same verdict, so it is an answer like any
    other: raised inside of Spark it would drown in the JVM's words, and cost the Python workers."""
    sent: int = 0
    """Bytes of gradients and parameters that went to other workers."""
    memory: int = 0
    """The most bytes that the process has had in memory so far."""
    spans: list[Span] | None = None


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
