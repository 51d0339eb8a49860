"""Strategies: how the workers of a ring share the work of training one network."""

from __future__ import annotations

from farandole.parallel import buckets, registry, schedules, trace
from farandole.parallel.allreduce import AllReduce
from farandole.parallel.base import Strategy, Synchronizer, Totals, broadcast_state, local_part
from farandole.parallel.batch_gathering import BatchGathering, map_outputs
from farandole.parallel.compression import Compression, Half, PowerSGD, TopK
from farandole.parallel.hybrid import Hybrid
from farandole.parallel.local_sgd import DiLoCo, LocalSGD
from farandole.parallel.long_barrier import long_barrier
from farandole.parallel.objects import gather_objects
from farandole.parallel.pipeline import schedule as pipeline_schedule
from farandole.parallel.pipeline.schedule import Action
from farandole.parallel.pipeline.split import balance_stages
from farandole.parallel.pipeline.stage_runner import StageRunner
from farandole.parallel.pipeline.strategy import Naive, Pipeline
from farandole.parallel.registry import resolve
from farandole.parallel.ring import Ring
from farandole.parallel.schedules import Schedule, Step
from farandole.parallel.server.strategy import ParameterServer
from farandole.parallel.sharded.strategy import Sharded
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm, convert_sync_batch_norm
from farandole.parallel.trace import Span

__all__ = [
    "Action",
    "AllReduce",
    "BatchGathering",
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
    "SynchronizedBatchNorm",
    "Synchronizer",
    "TopK",
    "Totals",
    "balance_stages",
    "broadcast_state",
    "buckets",
    "convert_sync_batch_norm",
    "gather_objects",
    "local_part",
    "long_barrier",
    "map_outputs",
    "pipeline_schedule",
    "registry",
    "resolve",
    "schedules",
    "trace",
]
