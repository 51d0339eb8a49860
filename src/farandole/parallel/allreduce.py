"""All-reduce: every worker has the whole network; gradients are summed once an update.

Gradients are views of one flat buffer, so an update costs a single collective. The loss, the
weight and the wish to stop travel in the buffer's tail, so they cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import InputError
from farandole.parallel.base import Totals
from farandole.world import World

_TAIL = 4  # the fields of Totals


class AllReduce:
    """Synchronous data parallelism over torch.distributed's all-reduce."""

    name = "allreduce"

    def attach(self, network: nn.Module, world: World) -> FlatGradients:
        """Copy rank 0's parameters and buffers to all, and lay gradients out flat."""
        if world.size > 1:
            for tensor in [*network.parameters(), *network.buffers()]:
                dist.broadcast(tensor.data, src=0)
        return FlatGradients(network, world)


class FlatGradients:
    """The gradients of a network as views of one flat buffer for each dtype."""

    def __init__(self, network: nn.Module, world: World) -> None:
        self._world = world
        self._network = network
        self.refresh()

    def refresh(self) -> None:
        """Lay out gradients for all parameters that are trainable now."""
        trainable = [p for p in self._network.parameters() if p.requires_grad]
        if not trainable:
            raise InputError("The network has no parameters to train (all of them are frozen).")
        self._flats = _flat_buffers(trainable)
        self._tail = self._find_tail()

    def begin(self) -> None:
        """Zero all gradients, and the tail with them."""
        for flat in self._flats.values():
            flat.zero_()

    def finish(self, mine: Totals) -> Totals:
        """Sum over workers, then divide by the global weight."""
        values = (mine.loss, mine.weight, float(mine.interrupted), float(mine.expired))
        self._tail.copy_(torch.tensor(values, dtype=torch.float64))
        if self._world.size > 1:
            for flat in self._flats.values():
                dist.all_reduce(flat)
        loss, weight, interrupted, expired = self._tail.tolist()
        if weight > 0:
            for flat in self._flats.values():
                flat.div_(weight)
        return Totals(loss, weight, interrupted > 0, expired > 0)

    def reduce_sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a small tensor over all workers."""
        if self._world.size > 1:
            dist.all_reduce(values)
        return values

    def average_buffers(self, rows: int) -> None:
        """Average floating-point buffers by rows; of counters, everybody takes the highest."""
        awake = [module for module in self._network.modules() if module.training]
        buffers = list(dict.fromkeys(b for module in awake for b in module.buffers(recurse=False)))
        if self._world.size == 1 or not buffers:
            return
        for buffer in buffers:
            if not buffer.is_floating_point():
                dist.all_reduce(buffer, dist.ReduceOp.MAX)
        floating = [buffer for buffer in buffers if buffer.is_floating_point()]
        # Nothing of a worker without rows: zero times an infinite buffer would not be zero.
        parts = [_weighted(buffer.reshape(-1).double(), rows) for buffer in floating]
        flat = torch.cat([*parts, torch.tensor([float(rows)], device=buffers[0].device).double()])
        dist.all_reduce(flat)
        flat /= flat[-1].clone()
        means = flat[:-1].split([buffer.numel() for buffer in floating]) if floating else ()
        for buffer, mean in zip(floating, means, strict=True):
            buffer.copy_(mean.view_as(buffer))

    def _find_tail(self) -> torch.Tensor:
        """The tail needs a dtype in which a row count is exact: bfloat16 would not do."""
        for dtype in (torch.float64, torch.float32):
            if dtype in self._flats:
                return self._flats[dtype][-_TAIL:]
        self._flats[torch.float32] = torch.zeros(
            _TAIL, device=next(iter(self._flats.values())).device
        )
        return self._flats[torch.float32]


def _weighted(values: torch.Tensor, rows: int) -> torch.Tensor:
    return values * rows if rows else torch.zeros_like(values)


def _flat_buffers(parameters: Iterable[nn.Parameter]) -> dict[torch.dtype, torch.Tensor]:
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    flats = {}
    for dtype, group in groups.items():
        size = sum(parameter.numel() for parameter in group)
        flat = torch.zeros(size + _TAIL, dtype=dtype, device=group[0].device)
        views = flat[:size].split([parameter.numel() for parameter in group])
        for parameter, view in zip(group, views, strict=True):
            parameter.grad = view.view_as(parameter)
        flats[dtype] = flat
    return flats
