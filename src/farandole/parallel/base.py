"""What a strategy does for the training loop: keep the parameters of all workers in step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from farandole.world import World


@dataclass(frozen=True)
class Totals:
    """What one update saw, over all workers."""

    loss: float
    """Sum of weighted row losses."""
    weight: float
    """Sum of row weights (the number of rows when there are none)."""
    interrupted: bool = False
    """Whether any worker was asked to end."""
    expired: bool = False
    """Whether any worker's time is up."""

    @property
    def mean_loss(self) -> float:
        """The weighted mean over all rows; 0 for no rows."""
        return self.loss / self.weight if self.weight else 0.0


class Synchronizer(Protocol):
    """One network's parameters, kept in step over all workers."""

    def refresh(self) -> None:
        """Take note that other parameters than before have `requires_grad`, on all workers."""
        ...

    def begin(self) -> None:
        """Start an update: forget old gradients."""
        ...

    def finish(self, mine: Totals) -> Totals:
        """Turn each worker's *sum* of gradients into the global mean, on all of them."""
        ...

    def reduce_sums(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a small tensor over all workers."""
        ...

    def average_buffers(self, rows: int) -> None:
        """Make running statistics (batch normalisation) equal on all workers.

        Each counts by the rows it has seen: a worker without any knows nothing. Modules in
        evaluation mode have learned nothing, and keep theirs to the last bit.
        """
        ...


class Strategy(Protocol):
    """A way to distribute training."""

    name: str

    def attach(self, network: nn.Module, world: World) -> Synchronizer:
        """Start from rank 0's parameters, and prepare to keep them in step."""
        ...
