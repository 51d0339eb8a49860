"""Local SGD and DiLoCo: workers train alone for some updates, then meet in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from farandole.arguments import check_integer
from farandole.errors import InputError
from farandole.parallel.base import broadcast_state
from farandole.parallel.outer import OuterSteps
from farandole.world import World


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """For slow networks: workers talk once in `every` updates.

    Each worker takes `every` steps with the mean gradient of its own rows. Then comes an outer
    step: the mean of all changes, by rows, is a gradient for the common parameters, which move by
    an SGD of their own, and everybody goes on from there. With the default settings that is to
    average parameters. The state of the inner optimizer stays with its worker. Epochs end with an
    outer step, too.

    Args:
        every: Updates between outer steps.
        outer_learning_rate: 1 goes all the way to the mean.
        outer_momentum: Of the outer SGD.
        nesterov: Whether that momentum looks ahead.

    >>> LocalSGD(every=16).is_exact
    False
    """

    name: ClassVar[str] = "local-sgd"
    is_exact: ClassVar[bool] = False
    is_whole: ClassVar[bool] = True
    splits_tensors: ClassVar[bool] = False

    every: int = 8
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    nesterov: bool = False

    def check(self, network: nn.Module, workers: int) -> None:
        """Any network will do; the settings have to make sense."""
        check_integer("every", self.every)
        if self.outer_learning_rate <= 0:
            raise InputError(
                "outer_learning_rate must be over 0; 1 averages parameters. "
                f"Received: outer_learning_rate={self.outer_learning_rate!r}"
            )
        if not 0 <= self.outer_momentum < 1 or (self.nesterov and not self.outer_momentum):
            raise InputError(
                "outer_momentum must be 0 or more and below 1, and over 0 with nesterov=True. "
                f"Received: outer_momentum={self.outer_momentum!r}, nesterov={self.nesterov!r}"
            )

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> OuterSteps:
        """Copy rank 0's parameters and buffers to all, and remember them as the common ones."""
        self.check(network, world.size)
        broadcast_state(network, world)
        return OuterSteps(
            network,
            world,
            every=self.every,
            lr=self.outer_learning_rate,
            momentum=self.outer_momentum,
            nesterov=self.nesterov,
        )


@dataclass(frozen=True, kw_only=True)
class DiLoCo(LocalSGD):
    """Local SGD with Nesterov's momentum outside; use AdamW inside.

    The outer settings are those of Douillard et al. (2023). They take 500 inner steps at a time, of
    88,000; the default here suits trainings of some hundred to some thousand updates.

    >>> DiLoCo(every=500).outer_momentum
    0.9
    """

    name: ClassVar[str] = "diloco"

    every: int = 50
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
