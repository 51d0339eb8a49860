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
from farandole.planning.data_parallel import asynchronous_servers
from farandole.planning.model_parallel import micro_batches_of, stages_of_hybrid
from farandole.planning.scenario import Scenario, StepCost

CostFunction = Callable[[Scenario], StepCost | None]
"""None where a strategy can't be used."""

STRATEGIES: dict[str, CostFunction] = {
    "allreduce": data_parallel.allreduce,
    "ring": data_parallel.ring,
    "parameter-server": partial(data_parallel.servers, count=1),
    "parameter-servers": lambda scenario: data_parallel.servers(scenario, scenario.servers),
    "asynchronous": data_parallel.asynchronous_servers_cost,
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


def _pipeline(scenario: Scenario, schedule: str) -> parallel.Pipeline:
    count = micro_batches_of(scenario, scenario.workers)
    return parallel.Pipeline(schedule=schedule, micro_batches=count)


def _hybrid(scenario: Scenario) -> parallel.Hybrid:
    stages = stages_of_hybrid(scenario)
    count = micro_batches_of(scenario, stages)
    inner = parallel.Pipeline(schedule="1f1b", micro_batches=count)
    return parallel.Hybrid(data=scenario.workers // stages, inner=inner)


_MAKERS: dict[str, Callable[[Scenario], parallel.Strategy]] = {
    "allreduce": lambda scenario: parallel.AllReduce(),
    "ring": lambda scenario: parallel.Ring(),
    "parameter-server": lambda scenario: parallel.ParameterServer(),
    "parameter-servers": lambda scenario: parallel.ParameterServer(servers=scenario.servers),
    "asynchronous": lambda scenario: parallel.ParameterServer(
        servers=asynchronous_servers(scenario), asynchronous=True
    ),
    "local-sgd": lambda scenario: parallel.LocalSGD(every=scenario.local_steps),
    "fp16": lambda scenario: parallel.AllReduce(compression="fp16"),
    "powersgd": lambda scenario: parallel.AllReduce(compression="powersgd"),
    "naive": lambda scenario: parallel.Naive(),
    "gpipe": partial(_pipeline, schedule="gpipe"),
    "1f1b": partial(_pipeline, schedule="1f1b"),
    "zero-1": lambda scenario: parallel.Sharded(stage=1),
    "zero-2": lambda scenario: parallel.Sharded(stage=2),
    "zero-3": lambda scenario: parallel.Sharded(stage=3),
    "hybrid": _hybrid,
}


def strategy_for(name: str, scenario: Scenario) -> parallel.Strategy:
    """What `strategy=` of `farandole.train` takes for a row of the table."""
    return _MAKERS[name](scenario)


def reason_refused(name: str, scenario: Scenario) -> str | None:
    """Why a strategy won't train the network on so many workers; None if it will.

    Where only a profile is known, nobody can say.
    """
    if scenario.network is None:
        return None
    try:
        strategy_for(name, scenario).check(scenario.network, scenario.workers)
    except InputError as error:
        return str(error)
    return None
