"""Ring: every worker has the whole network; sums of gradients go round in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from farandole.parallel.base import broadcast_state
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.schedules import ring
from farandole.parallel.summation import ScheduledSummation
from farandole.world import World


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Ring all-reduce over sends from neighbour to neighbour.

    Of K values, each of N workers sends 2 (N - 1) K / N, however many they are.

    >>> Ring().name, Ring().is_exact
    ('ring', True)
    """

    name: ClassVar[str] = "ring"
    is_exact: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True
    splits_tensors: ClassVar[bool] = False

    def check(self, network: nn.Module, workers: int) -> None:
        """Any network will do, on any number of workers."""

    def attach(
        self, network: nn.Module, world: World, example: Sequence[Any] = ()
    ) -> FlatGradients:
        """Copy rank 0's parameters and buffers to all, and lay gradients out flat."""
        broadcast_state(network, world)
        return FlatGradients(network, world, ScheduledSummation(ring(world.size), world))
