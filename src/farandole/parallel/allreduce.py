"""All-reduce: every worker has the whole network; gradients are summed once an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from farandole.parallel.base import start_alike
from farandole.parallel.flat import FlatGradients
from farandole.parallel.summation import Collective
from farandole.world import World


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Synchronous data parallelism: each update uses the mean gradient of all workers' rows."""

    name: ClassVar[str] = "allreduce"
    is_exact: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True

    def check(self, network: nn.Module, workers: int) -> None:
        """Any network will do, on any number of workers."""

    def attach(
        self, network: nn.Module, world: World, example: Sequence[Any] = ()
    ) -> FlatGradients:
        """Copy rank 0's parameters and buffers to all, and lay gradients out flat."""
        start_alike(network, world)
        return FlatGradients(network, world, Collective(world.size))
