"""Strategies: what can be priced, and whether the strategy itself would take the network.

Every worker brings the same number of rows, whatever the strategy: a step of N workers sees N times
the rows of one. So the time of a step can be compared with that of one worker alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from farandole import parallel
from farandole.errors import InputError
from farandole.planning import data_parallel, model_parallel
from farandole.planning.case import Case, Price
from farandole.planning.data_parallel import asynchronous_servers
from farandole.planning.model_parallel import micro_batches_of, stages_of_hybrid

Pricing = Callable[[Case], Price | None]
"""None where a strategy can't be used."""

STRATEGIES: dict[str, Pricing] = {
    "allreduce": data_parallel.allreduce,
    "ring": data_parallel.ring,
    "parameter-server": partial(data_parallel.servers, count=1),
    "parameter-servers": lambda case: data_parallel.servers(case, case.servers),
    "asynchronous": data_parallel.at_own_pace,
    "local-sgd": data_parallel.local_steps,
    "fp16": data_parallel.half,
    "powersgd": data_parallel.power_sgd,
    "naive": partial(model_parallel.pipeline, kind="gpipe", micro_batches=1),
    "gpipe": partial(model_parallel.pipeline, kind="gpipe"),
    "1f1b": partial(model_parallel.pipeline, kind="1f1b"),
    "zero-1": partial(data_parallel.sharded, stage=1),
    "zero-2": partial(data_parallel.sharded, stage=2),
    "zero-3": partial(data_parallel.sharded, stage=3),
    "hybrid": model_parallel.hybrid,
}
"""What can be priced, the simplest first."""

INEXACT = ("asynchronous", "local-sgd", "fp16", "powersgd")
"""Those that don't compute what one worker would have computed."""


def _pipeline(case: Case, schedule: str) -> parallel.Pipeline:
    count = micro_batches_of(case, case.workers)
    return parallel.Pipeline(schedule=schedule, micro_batches=count)


def _hybrid(case: Case) -> parallel.Hybrid:
    stages = stages_of_hybrid(case)
    count = micro_batches_of(case, stages)
    inner = parallel.Pipeline(schedule="1f1b", micro_batches=count)
    return parallel.Hybrid(data=case.workers // stages, inner=inner)


_REAL: dict[str, Callable[[Case], parallel.Strategy]] = {
    "allreduce": lambda case: parallel.AllReduce(),
    "ring": lambda case: parallel.Ring(),
    "parameter-server": lambda case: parallel.ParameterServer(),
    "parameter-servers": lambda case: parallel.ParameterServer(servers=case.servers),
    "asynchronous": lambda case: parallel.ParameterServer(
        servers=asynchronous_servers(case), asynchronous=True
    ),
    "local-sgd": lambda case: parallel.LocalSGD(every=case.local_steps),
    "fp16": lambda case: parallel.AllReduce(compression="fp16"),
    "powersgd": lambda case: parallel.AllReduce(compression="powersgd"),
    "naive": lambda case: parallel.Naive(),
    "gpipe": partial(_pipeline, schedule="gpipe"),
    "1f1b": partial(_pipeline, schedule="1f1b"),
    "zero-1": lambda case: parallel.Sharded(stage=1),
    "zero-2": lambda case: parallel.Sharded(stage=2),
    "zero-3": lambda case: parallel.Sharded(stage=3),
    "hybrid": _hybrid,
}


def runnable(name: str, case: Case) -> parallel.Strategy:
    """What `strategy=` of `farandole.train` takes for a row of the table."""
    return _REAL[name](case)


def refusal(name: str, case: Case) -> str | None:
    """Why a strategy won't train the network on so many workers; None if it will.

    Where only a profile is known, nobody can say.
    """
    if case.network is None:
        return None
    try:
        runnable(name, case).check(case.network, case.workers)
    except InputError as error:
        return str(error)
    return None
