"""strategy="auto": what suits a network and the memory that its workers have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import UninitializedParameter

from farandole.errors import InputError
from farandole.parallel import AllReduce, Sharded, Strategy
from farandole.planning.memory import sharded
from farandole.planning.units import format_bytes
from farandole.system_resources import available_memory

_USABLE = 0.8
"""Of the memory that is free; the rest is for activations and rows."""


@dataclass(frozen=True)
class Choice:
    """A strategy, and why it was taken."""

    strategy: Strategy
    reason: str


def choose(
    network: nn.Module,
    workers: int,
    *,
    memory: float | None = None,
    check: Callable[[Strategy], None] | None = None,
) -> Choice:
    """The simplest strategy under which a network fits; no processes, next to no time.

    This is the planner's model of memory, and no simulation: no link and no time is looked at, only
    whether parameters, gradients and Adam's averages fit. Nothing is simpler than all-reduce, so
    that is taken where they do; where they don't, they are split, stage by stage.

    Args:
        network: any torch module.
        workers: how many share the work.
        memory: bytes of one worker; by default its share of what is free here.
        check: raises an InputError for a strategy that won't do for another reason.

    >>> choose(nn.Linear(10, 10), 4).strategy.name
    'allreduce'
    >>> choose(nn.Linear(1000, 1000), 4, memory=10e6).strategy
    Sharded(stage=2)
    """
    parameters = _count(network)
    room = memory if memory is not None else _USABLE * available_memory() / workers
    needed = [sharded(parameters, workers, stage) for stage in range(4)]
    if needed[0] <= room or workers == 1:
        return Choice(
            AllReduce(), f"{format_bytes(needed[0])} a worker fit into {format_bytes(room)}"
        )
    fitting = [stage for stage in (1, 2, 3) if needed[stage] <= room]
    # Where nothing fits, or what fits isn't allowed: the more is split, the better.
    for stage in [*fitting, 3, 2, 1]:
        found = Sharded(stage=stage)
        if _is_allowed(found, network, workers, check):
            split = f"with stage {stage} of sharding it is {format_bytes(needed[stage])}"
            short = f"{format_bytes(needed[0])} don't fit into {format_bytes(room)} a worker"
            return Choice(found, f"{short}; {split}")
    return Choice(AllReduce(), f"{format_bytes(needed[0])} a worker are much, but can't be split")


def _count(network: nn.Module) -> int:
    """A lazy layer has no size yet."""
    lazy = UninitializedParameter
    return sum(p.numel() for p in network.parameters() if not isinstance(p, lazy))


def _is_allowed(
    strategy: Strategy,
    network: nn.Module,
    workers: int,
    check: Callable[[Strategy], None] | None,
) -> bool:
    try:
        strategy.check(network, workers)
        if check is not None:
            check(strategy)
    except InputError:
        return False
    return True
