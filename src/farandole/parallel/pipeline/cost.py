"""Cost: how long each layer of a chain takes here, forward and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from farandole.parallel.pipeline.chain import Layer
from farandole.world import World

_ROWS = 64
_REPEATS = 3


def agreed_costs(layers: Sequence[Layer], values: Sequence[Any], world: World) -> list[float]:
    """Seconds that each layer takes on rank 0, on all workers. `values` are what layers take."""
    costs = torch.zeros(len(layers), dtype=torch.float64, device=world.device)
    if world.is_leader:
        costs += torch.tensor(measured(layers, values), dtype=torch.float64).to(world.device)
    if world.size > 1:
        dist.broadcast(costs, src=0)
    found: list[float] = costs.tolist()
    return found


def measured(layers: Sequence[Layer], values: Sequence[Any]) -> list[float]:
    """The least of a few measurements for each layer, on more rows than there are in `values`.

    >>> from torch import nn
    >>> layers = [Layer("0", nn.Linear(8, 4)), Layer("1", nn.ReLU())]
    >>> [cost > 0 for cost in measured(layers, [torch.zeros(2, 8), torch.zeros(2, 4)])]
    [True, True]
    """
    with torch.random.fork_rng(devices=[]):
        pairs = zip(layers, values, strict=True)
        return [_seconds(layer, _more(value)) for layer, value in pairs]


def _seconds(layer: Layer, rows: torch.Tensor) -> float:
    training = layer.module.training
    layer.module.eval()  # statistics stay as they are
    try:
        return min(_once(layer, rows) for _ in range(1 + _REPEATS))
    finally:
        layer.module.train(training)


def _once(layer: Layer, rows: torch.Tensor) -> float:
    taken = rows.clone().requires_grad_(rows.is_floating_point())
    given = [taken] if taken.requires_grad else []
    sources = given + [p for p in layer.module.parameters() if p.requires_grad]
    start = time.perf_counter()
    with torch.enable_grad():
        # Of a copy, as if another layer had made it: some layers write over what they are given.
        output = layer.module(taken.clone())
    outputs = output if isinstance(output, tuple | list) else [output]
    sums = [one.sum() for one in outputs if one.requires_grad]
    if sums and sources:
        torch.autograd.grad(sums, sources, allow_unused=True)
    if rows.is_cuda:
        torch.cuda.synchronize(rows.device)
    return time.perf_counter() - start


def _more(rows: torch.Tensor) -> torch.Tensor:
    return rows.repeat(-(-_ROWS // len(rows)), *[1] * (rows.dim() - 1))
