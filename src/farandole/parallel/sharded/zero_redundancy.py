"""ZeRO's first stage: every worker has the whole network, but optimizer state only for its share.

Torch's ZeroRedundancyOptimizer does the same, but builds its optimizer itself, from a class and
options. Here there is one already, whose groups a schedule changes; and not every optimizer can be
built again from its defaults (AdamW can't). So the one that is there forgets what others own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from farandole.parallel.base import trainable
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.summation import TorchSummation
from farandole.parallel.trace import span
from farandole.world import World


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
    """Gradients are summed everywhere; each worker moves the tensors it owns, and tells the others.

    Bytes: those of the sum, and each owned tensor once to every other worker.
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
