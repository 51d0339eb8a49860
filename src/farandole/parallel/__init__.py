"""Strategies: how the workers of a ring share the work of training one network."""

from __future__ import annotations

from collections.abc import Callable

from farandole.errors import InputError, suggestion
from farandole.parallel import buckets, description, pipeline_schedule, schedules, trace
from farandole.parallel.allreduce import AllReduce
from farandole.parallel.base import Strategy, Synchronizer, Totals, broadcast_state, local_part
from farandole.parallel.compression import Compression, Half, PowerSGD, TopK
from farandole.parallel.compression.powersgd import as_matrix
from farandole.parallel.hybrid import Hybrid
from farandole.parallel.local_sgd import DiLoCo, LocalSGD
from farandole.parallel.pipeline.pipe import StageRunner
from farandole.parallel.pipeline.strategy import Naive, Pipeline
from farandole.parallel.pipeline_schedule import Action
from farandole.parallel.ring import Ring
from farandole.parallel.schedules import Schedule, Step
from farandole.parallel.server.strategy import ParameterServer
from farandole.parallel.sharded.strategy import Sharded
from farandole.parallel.summation import Collective, Summation
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm, convert_sync_batch_norm
from farandole.parallel.trace import Span

__all__ = [
    "Action",
    "AllReduce",
    "Collective",
    "Compression",
    "DiLoCo",
    "Half",
    "Hybrid",
    "LocalSGD",
    "Naive",
    "ParameterServer",
    "Pipeline",
    "PowerSGD",
    "Ring",
    "Schedule",
    "Sharded",
    "Span",
    "StageRunner",
    "Step",
    "Strategy",
    "Summation",
    "SynchronizedBatchNorm",
    "Synchronizer",
    "TopK",
    "Totals",
    "as_matrix",
    "broadcast_state",
    "buckets",
    "convert_sync_batch_norm",
    "description",
    "local_part",
    "pipeline_schedule",
    "resolve",
    "schedules",
    "trace",
]

_STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "allreduce": AllReduce,
    "ring": Ring,
    "parameter-server": ParameterServer,
    "local-sgd": LocalSGD,
    "diloco": DiLoCo,
    "sharded": Sharded,
    "naive": Naive,
    "pipeline": Pipeline,
    "hybrid": Hybrid,
}


def resolve(strategy: str | Strategy) -> Strategy:
    """The strategy that a name stands for.

    >>> resolve("allreduce").name
    'allreduce'
    """
    if isinstance(strategy, str):
        if strategy not in _STRATEGIES:
            known = ["auto", *_STRATEGIES]
            raise InputError(f"There is no strategy {strategy!r}. {suggestion(strategy, known)}")
        return _STRATEGIES[strategy]()
    if isinstance(strategy, type) or not hasattr(strategy, "attach"):
        raise InputError(
            'strategy must be a name, such as "allreduce", or an object, such as '
            f"Sharded(stage=2). Received: strategy={strategy!r}"
        )
    return strategy
