"""Registry: strategies by name, and as JSON, so that an estimator can be saved without a pickle."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from farandole.errors import InputError, suggestion
from farandole.parallel.allreduce import AllReduce
from farandole.parallel.base import Strategy
from farandole.parallel.compression import Half, PowerSGD, TopK
from farandole.parallel.hybrid import Hybrid
from farandole.parallel.local_sgd import DiLoCo, LocalSGD
from farandole.parallel.pipeline import Naive, Pipeline
from farandole.parallel.ring import Ring
from farandole.parallel.server import ParameterServer
from farandole.parallel.sharded import Sharded

_KEY = "farandole.parallel"
_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        AllReduce, DiLoCo, Half, Hybrid, LocalSGD, Naive, ParameterServer, Pipeline, PowerSGD, Ring,
        Sharded, TopK,
    )
}  # fmt: skip
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


STRATEGIES = ("auto", *_STRATEGIES)
"""The names under which strategies are known."""

_ELSEWHERE = {
    "'allreduce'": ("ddp", "dp", "horovod", "torchdistributor", "mirrored", "data-parallel"),
    "'sharded'": ("fsdp", "fsdp2", "deepspeed", "zero", "zero-3"),
    "farandole.parallel.Sharded(stage=1)": ("zero-1",),
    "farandole.parallel.Sharded(stage=2)": ("zero-2",),
    "farandole.parallel.Hybrid(inner=Sharded())": ("hsdp",),
    "'pipeline'": ("gpipe", "pipedream"),
    'farandole.parallel.Pipeline(schedule="1f1b")': ("1f1b",),
    "'hybrid'": ("megatron", "3d"),
    "'parameter-server'": ("ps", "ps-lite"),
    "farandole.parallel.ParameterServer(asynchronous=True)": ("async", "downpour", "hogwild"),
    "'local-sgd'": ("fedavg", "post-local-sgd"),
    "'naive'": ("model-parallel", "mp"),
}
"""What is asked for here → what other libraries call it."""


def equivalent(name: str) -> str:
    """What to say to somebody who may know a strategy under another library's name.

    >>> equivalent("ddp_spawn"), equivalent("deepspeed_stage_2")
    ("Did you mean 'allreduce'?", 'Did you mean farandole.parallel.Sharded(stage=2)?')
    """
    plain = re.sub(r"-(spawn|notebook|find-unused.*|offload)$", "", name.lower().replace("_", "-"))
    plain = re.sub(r"^(deepspeed|zero)(-stage)?-?([123])$", r"zero-\3", plain)
    for ours, theirs in _ELSEWHERE.items():
        if plain in theirs:
            return f"Did you mean {ours}?"
    return suggestion(name, STRATEGIES)


def resolve(strategy: str | Strategy) -> Strategy:
    """The strategy that a name stands for.

    >>> resolve("allreduce").name
    'allreduce'
    """
    if isinstance(strategy, str):
        if strategy not in _STRATEGIES:
            raise InputError(f"There is no strategy {strategy!r}. {equivalent(strategy)}")
        return _STRATEGIES[strategy]()
    if isinstance(strategy, type) or not hasattr(strategy, "attach"):
        raise InputError(
            'strategy must be a name, such as "allreduce", or an object, such as '
            f"Sharded(stage=2). Received: strategy={strategy!r}"
        )
    return strategy


def describe(strategy: Any) -> dict[str, Any] | None:
    """What JSON can hold of a strategy; None for one that isn't of this library.

    >>> describe(Sharded(stage=2))
    {'farandole.parallel': 'Sharded', 'stage': 2}
    >>> describe("allreduce")
    """
    if _KINDS.get(type(strategy).__name__) is not type(strategy):
        return None
    values = {field.name: getattr(strategy, field.name) for field in fields(strategy) if field.init}
    inner = {name: describe(value) or value for name, value in values.items()}
    return {_KEY: type(strategy).__name__, **inner}


def build(description: Any) -> Any:
    """The strategy that was described; anything else as it is.

    >>> build(describe(Hybrid(data=3, inner=Pipeline(micro_batches=2)))).inner.micro_batches
    2
    """
    if not isinstance(description, dict) or description.get(_KEY) not in _KINDS:
        return description
    options = {name: build(value) for name, value in description.items() if name != _KEY}
    return _KINDS[description[_KEY]](**options)
