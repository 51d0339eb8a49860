"""Split: at which layers the stages of a pipeline begin, by what each layer costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from farandole.errors import InputError, suggestion
from farandole.parallel.pipeline.layers import Layer
from farandole.world import World

_ROWS = 64
_REPEATS = 3


def balance_stages(costs: Sequence[float], learns: Sequence[bool], stages: int) -> list[int]:
    """Where each stage begins, so that the slowest one is as fast as can be.

    Every stage gets something that learns. The planner prices pipelines by this split, too.

    Args:
        costs: of each layer.
        learns: whether a layer has anything to learn.
        stages: how many.

    >>> balance_stages([1, 1, 1, 1, 4], [True] * 5, stages=2)
    [0, 4]
    >>> balance_stages([1, 1, 1, 1, 4], [True, False, False, True, True], stages=3)
    [0, 2, 4]
    """
    count = len(costs)
    spent = np.array([0.0, *accumulate(costs)])
    learned = np.array([0, *accumulate(map(int, learns))])
    # one[end, start]: what a stage of the layers from start to end costs, if it can be one.
    one = np.where(learned[:, None] > learned, spent[:, None] - spent, np.inf)
    # worst[end]: of the first `end` layers in so many stages, the cost of the slowest one.
    worst = np.array([0.0] + [np.inf] * count)
    chosen = []
    for _ in range(stages):
        slowest = np.maximum(one, worst)
        chosen.append(slowest.argmin(1))  # of equal ones the first
        worst = slowest.min(1)
    starts = [count]
    for starts_by_end in reversed(chosen):
        starts.append(int(starts_by_end[starts[-1]]))
    return starts[:0:-1]


def starts_at(layers: Sequence[Layer], names: Sequence[str]) -> list[int]:
    """Where each stage begins: the first at the first layer, the others at those of these names.

    The name of a group of layers stands for its first.

    >>> from torch import nn
    >>> starts_at([Layer("0", nn.ReLU()), Layer("1.0", nn.ReLU()), Layer("1.1", nn.ReLU())], ["1"])
    [0, 1]
    """
    known = [layer.name for layer in layers]
    starts = [0]
    for name in names:
        found = [n for n, one in enumerate(known) if one == name or one.startswith(f"{name}.")]
        if not found:
            raise InputError(f"split_at: there is no layer {name!r}. {suggestion(name, known)}")
        starts.append(found[0])
    if any(after <= before for before, after in pairwise(starts)):
        raise InputError(
            "split_at must name layers in the order of the network, each once and none of them "
            f"the first, {known[0]!r}. Received: split_at={list(names)!r}"
        )
    return starts


def check_stages(layers: Sequence[Layer], starts: Sequence[int]) -> None:
    """Raise for a stage without anything that learns."""
    for start, end in pairwise([*starts, len(layers)]):
        part = layers[start:end]
        if not any(layer.learns for layer in part):
            raise InputError(
                f"The stage from {part[0].name!r} to {part[-1].name!r} has no parameters to train. "
                "Split at other layers, freeze fewer of them, or use fewer stages."
            )


def check_stage_count(layers: Sequence[Layer], stages: int) -> None:
    """Raise for more stages than layers that learn."""
    count = sum(layer.learns for layer in layers)
    if count < stages:
        raise InputError(
            f"{count} of the network's {len(layers)} layers have parameters to train: too few for "
            f"{stages} stages. Use at most {max(count, 1)} workers in a pipeline, or another "
            "strategy."
        )


def layer_costs(layers: Sequence[Layer], values: Sequence[Any], world: World) -> list[float]:
    """Seconds that each layer takes on rank 0, on all workers. `values` are what layers take."""
    costs = torch.zeros(len(layers), dtype=torch.float64, device=world.device)
    if world.is_leader:
        costs += torch.tensor(measure_costs(layers, values), dtype=torch.float64).to(world.device)
    if world.size > 1:
        dist.broadcast(costs, src=0)
    found: list[float] = costs.tolist()
    return found


def measure_costs(layers: Sequence[Layer], values: Sequence[Any]) -> list[float]:
    """The least of a few measurements for each layer, on more rows than there are in `values`.

    >>> from torch import nn
    >>> layers = [Layer("0", nn.Linear(8, 4)), Layer("1", nn.ReLU())]
    >>> [cost > 0 for cost in measure_costs(layers, [torch.zeros(2, 8), torch.zeros(2, 4)])]
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
