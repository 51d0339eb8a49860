"""Local SGD and DiLoCo: workers train alone for some updates, then take an outer step together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from farandole.arguments import check_integer
from farandole.errors import InputError
from farandole.parallel.base import (
    Names,
    Synchronizer,
    Totals,
    average_buffers,
    broadcast_state,
    placed,
    trainable,
)
from farandole.parallel.flat_gradients import group_by_dtype, set_gradient_views
from farandole.parallel.long_barrier import long_barrier
from farandole.parallel.summation import TorchSummation
from farandole.parallel.trace import span
from farandole.world import World

_MANY_UPDATES = 32
"""Workers that take so many steps alone may come apart by more than a collective waits."""


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """For slow networks: workers talk once in `every` updates.

    Each worker takes `every` steps with the mean gradient of its own rows. Then comes an outer
    step: the mean of all changes, by rows, is a gradient for the common parameters, which move by
    an SGD of their own, and all workers go on from there. With the default settings that is to
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


class OuterSteps(Synchronizer):
    """Workers step alone; every so many updates, all together.

    Between outer steps nothing is sent, and `reduce_gradients` gives a worker's own totals. So what
    all have to know at once, or some would wait for the others for ever, is kept for the next outer
    step: requests to stop, and losses that aren't finite.

    Args:
        every: Updates between outer steps.
        outer: Settings of the outer SGD.
    """

    def __init__(self, network: nn.Module, world: World, *, every: int, **outer: Any) -> None:
        super().__init__(network, world)
        self._every = every
        self._outer_settings = outer
        self._outer: torch.optim.SGD | None = None
        self._summation = TorchSummation(world.size)
        self._common: dict[nn.Parameter, nn.Parameter] = {}
        self._updates = 0  # since the last outer step
        self._mine = self._seen = self._seen_by_all = 0.0  # weight: now, since then, of all workers
        self._waiting = Totals(0.0, 0.0)
        self.update_trainable()

    @property
    def sent(self) -> int:
        """Bytes of outer steps."""
        return self._summation.sent

    @property
    def in_step(self) -> bool:
        """Only between an outer step and the next update."""
        return self._updates == 0

    @property
    def _is_due(self) -> bool:
        return self._updates >= self._every

    def update_trainable(self) -> None:
        """Remember parameters that learn from now on; outer momentum of the others stays."""
        fresh = [p for p in trainable(self.network) if p not in self._common]
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in fresh]
        self._common.update(zip(fresh, copies, strict=True))
        if self._outer is None:
            self._outer = torch.optim.SGD(copies, **self._outer_settings)
        elif copies:
            self._outer.add_param_group({"params": copies})

    def zero_grad(self, passes: int = 1) -> None:
        """Zero all gradients."""
        for parameter in self._common:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def reduce_gradients(self, mine: Totals) -> Totals:
        """Make the mean of my own rows' gradients; share totals if an outer step is due."""
        sound = math.isfinite(mine.loss)
        self._mine = mine.weight if sound else 0.0
        self._seen += self._mine
        self._updates += 1
        self._keep(mine)
        if self._mine > 0:
            for parameter in self._common:
                if parameter.grad is not None:
                    parameter.grad.div_(self._mine)
        loss, weight = (mine.loss, mine.weight) if sound else (0.0, 0.0)
        return self._share(loss, weight) if self._is_due else Totals(loss, weight)

    def delayed_totals(self) -> Totals:
        """What was kept since the last outer step, of all workers."""
        return self._share(0.0, 0.0) if self._updates else super().delayed_totals()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move alone if there were rows; then together, if it is time."""
        if self._mine > 0:
            optimizer.step()
        if self._is_due:
            self._outer_step()

    def end_epoch(self, rows: int) -> None:
        """Average parameters if any worker has made a step; average running statistics."""
        if self._updates:
            self._share(0.0, 0.0)
            self._outer_step()
        average_buffers(self.network, self.world, rows)

    def own_state(self, optimizer: torch.optim.Optimizer, names: Names) -> Any:
        """The inner optimizer's state, which stays with its worker, and the outer momentum."""
        assert self._outer is not None
        inner = self.optimizer_states(optimizer, names, everyones=True)
        pairs = [(names[p], self._outer.state[common]) for p, common in self._common.items()]
        return {"inner": inner, "outer": {name: state for name, state in pairs if state}}

    def load_own_states(
        self,
        states: Sequence[Any],
        leaders: Any,
        optimizer: torch.optim.Optimizer,
        names: Names,
    ) -> None:
        """Of several workers' inner states, the first; outer momentum is the same for all."""
        assert self._outer is not None
        inner = (states[0] if states else leaders)["inner"]
        self.set_optimizer_states(optimizer, names, inner)
        for parameter, common in self._common.items():
            if names[parameter] in leaders["outer"]:
                state = leaders["outer"][names[parameter]]
                self._outer.state[common] = placed(state, common, self._outer)

    def close(self) -> None:
        """Forget the common parameters and all gradients."""
        for parameter in self.network.parameters():
            parameter.grad = None
        self._common.clear()
        self._outer = None
        self._summation.close()

    def _keep(self, mine: Totals) -> None:
        """Remember what all have to know."""
        kept = self._waiting
        self._waiting = Totals(
            loss=kept.loss if math.isfinite(mine.loss) else math.nan,
            weight=0.0,
            interrupted=kept.interrupted or mine.interrupted,
            expired=kept.expired or mine.expired,
            checkpoint=kept.checkpoint or mine.checkpoint,
            preempted=kept.preempted or mine.preempted,
        )

    def _share(self, loss: float, weight: float) -> Totals:
        """Totals of all workers, with all that was kept for this."""
        waiting, self._waiting = self._waiting, Totals(0.0, 0.0)
        mine = replace(waiting, loss=loss + waiting.loss, weight=weight)
        device = next(iter(self._common)).device
        if self._every >= _MANY_UPDATES:
            long_barrier(self.world.size)
        values = torch.tensor([*mine.numbers(), self._seen], dtype=torch.float64, device=device)
        with span("sum"):
            self._summation.sum_(values)
        *numbers, self._seen_by_all = values.tolist()
        return Totals.of(numbers)

    def _outer_step(self) -> None:
        """One step of the outer optimizer, the same on all workers, who go on from there."""
        assert self._outer is not None
        self._updates = 0
        if not self._seen_by_all:  # no worker has made a step; momentum alone is no reason to
            return
        share = self._seen / self._seen_by_all
        with span("sum"), torch.no_grad():
            for group in group_by_dtype(self._common).values():
                self._sum_changes(group, share)
        self._outer.step()
        with torch.no_grad():
            for parameter, common in self._common.items():
                parameter.copy_(common)
        self._seen = 0.0

    def _sum_changes(self, group: list[nn.Parameter], share: float) -> None:
        """The mean way back from where the workers are, as gradients of the common parameters."""
        flat = torch.cat([(self._common[p] - p).reshape(-1) for p in group]).mul_(share)
        self._summation.sum_(flat)
        set_gradient_views(flat, [self._common[parameter] for parameter in group])
