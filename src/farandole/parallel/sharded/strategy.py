"""Sharded: what a worker needs for training is split over all of them (ZeRO's stages 1 to 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from farandole.errors import InputError
from farandole.parallel.base import (
    Names,
    OptimizerStates,
    Synchronizer,
    broadcast_state,
    trainable,
)
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.sharded.fully_sharded import FullySharded
from farandole.parallel.sharded.units import parameters_outside, units
from farandole.parallel.summation import TorchSummation
from farandole.parallel.trace import span
from farandole.world import World


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """Data parallelism in which no two workers keep the same optimizer state.

    Args:
        stage: what is split. 1: optimizer state. 2: gradients too. 3: parameters too; each layer's
            are gathered when it is their turn, forward and backward, and freed again.

    Stages 2 and 3 are torch's `fully_shard`. With accumulation they keep whole gradients between
    the passes of an update, so that they are summed only once.

    >>> Sharded(stage=1).is_whole, Sharded(stage=3).is_whole
    (True, False)
    """

    stage: int = 3

    name: ClassVar[str] = "sharded"
    is_exact: ClassVar[bool] = True

    @property
    def is_whole(self) -> bool:
        """Only in the first stage."""
        return self.stage == 1

    @property
    def splits_tensors(self) -> bool:
        """Whether a worker's optimizer sees only a part of each tensor."""
        return self.stage > 1

    def check(self, network: nn.Module, workers: int) -> None:
        """Raise for a stage that isn't there, and for networks that can't be split so often."""
        if self.stage not in (1, 2, 3):
            raise InputError(
                "stage must be 1 (optimizer state is split), 2 (gradients too) or 3 (parameters "
                f"too). Received: stage={self.stage!r}"
            )
        if self.splits_tensors and workers > 1 and not any(map(is_lazy, network.parameters())):
            _check_parts(network, workers)

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        """Copy rank 0's parameters and buffers to all, and keep this worker's part of them."""
        return self.attach_replicated(network, world, example, replicas=1)

    def attach_replicated(
        self, network: nn.Module, world: World, example: Sequence[Any] = (), *, replicas: int
    ) -> Synchronizer:
        """Split over each of so many groups of neighbours; the groups have the same parameters."""
        broadcast_state(network, world)
        if world.size == 1:
            return FlatGradients(network, world, TorchSummation(1))
        if self.stage == 1:  # state is split over all: that is never more than over a group
            return ZeroRedundancy(network, world)
        return FullySharded(network, world, replicas, reshard=self.stage == 3)


def _check_parts(network: nn.Module, workers: int) -> None:
    for name, parameter in network.named_parameters():
        if parameter.dim() == 0:
            raise InputError(
                f"The parameter {name!r} is a single number without a dimension, which can't be "
                "sharded. Give it the shape (1,), or use Sharded(stage=1)."
            )
    longest = max((parameter.shape[0] for parameter in network.parameters()), default=0)
    if longest < workers:
        raise InputError(
            f"The network is too small to be sharded over {workers} workers: the first dimension "
            f"of its tensors is at most {longest}. Use at most {max(longest, 1)} workers, or "
            'strategy="allreduce".'
        )
    for module in [*units(network), None]:
        parameters = parameters_outside(network) if module is None else list(module.parameters())
        types = {parameter.dtype for parameter in parameters}
        if len(types) > 1:
            where = "outside of layers" if module is None else f"of a {type(module).__name__}"
            raise InputError(
                f"The parameters {where} have several types ({', '.join(map(str, types))}), and "
                "those that travel together need one. Use Sharded(stage=1), or one type."
            )


def owners(sizes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """Who takes each tensor: the largest first, each to the worker that has least so far.

    >>> owners([10, 40, 30, 10], loads=[0, 0])
    [1, 0, 1, 0]
    """
    loads, chosen = list(loads), [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        chosen[number] = loads.index(min(loads))
        loads[chosen[number]] += sizes[number]
    return chosen


class ZeroRedundancy(FlatGradients):
    """Stage 1: each worker moves the tensors it owns, and keeps optimizer state for them only.

    Gradients are summed everywhere, then each owned tensor goes once to every other worker.

    Torch's ZeroRedundancyOptimizer does the same, but builds its optimizer itself, from a class and
    options. Here there is one already, whose groups a schedule changes; and not every optimizer can
    be built again from its defaults (AdamW can't). So this one forgets what other workers own.
    """

    def __init__(self, network: nn.Module, world: World) -> None:
        self._owner: dict[nn.Parameter, int] = {}
        self._loads = [0] * world.size
        self._sent_parameters = 0
        self._groups: list[list[nn.Parameter]] | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        super().__init__(network, world, TorchSummation(world.size))

    @property
    def sent(self) -> int:
        """Gradients and parameters."""
        return super().sent + self._sent_parameters

    def update_trainable(self) -> None:
        """Find owners for what learns from here on; what has one keeps it, and its state."""
        super().update_trainable()
        new = [p for p in trainable(self.network) if p not in self._owner]
        sizes = [parameter.nbytes for parameter in new]
        for parameter, owner in zip(new, owners(sizes, self._loads), strict=True):
            self._owner[parameter] = owner
            self._loads[owner] += parameter.nbytes
        self._optimizer = None

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move what this worker owns, then give and get."""
        if optimizer is not self._optimizer:
            self._prune(optimizer)
        optimizer.step()
        if self.world.size > 1:
            with span("send", "parameters"):
                self._share()

    def optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, *, everyones: bool = False
    ) -> OptimizerStates:
        """Those of the tensors that this worker owns."""
        return super().optimizer_states(optimizer, self._owned(names), everyones=True)

    def set_optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, states: OptimizerStates
    ) -> None:
        """Those of the tensors that this worker owns."""
        super().set_optimizer_states(optimizer, self._owned(names), states)

    def _owned(self, names: Names) -> Names:
        return {p: name for p, name in names.items() if self._owner.get(p) == self.world.rank}

    def close(self) -> None:
        """The optimizer goes too."""
        super().close()
        self._owner.clear()
        self._groups = self._optimizer = None

    def _prune(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave the optimizer only what is this worker's."""
        if self._groups is None:
            self._groups = [list(group["params"]) for group in optimizer.param_groups]
        for group, every in zip(optimizer.param_groups, self._groups, strict=True):
            mine = [p for p in every if self._owner.get(p) == self.world.rank]
            for parameter in set(every) - set(mine):
                optimizer.state.pop(parameter, None)
            group["params"] = mine
        self._optimizer = optimizer

    def _share(self) -> None:
        sending = [
            dist.broadcast(parameter.data, src=owner, async_op=True)
            for parameter, owner in self._owner.items()
        ]
        for work in sending:
            work.wait()
        self._sent_parameters += (self.world.size - 1) * self._loads[self.world.rank]
