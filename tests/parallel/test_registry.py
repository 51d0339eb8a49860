from __future__ import annotations

import json

import pytest
from torch import nn

import farandole.parallel
from farandole.errors import InputError
from farandole.parallel import (
    AllReduce,
    DiLoCo,
    Hybrid,
    LocalSGD,
    Naive,
    ParameterServer,
    Pipeline,
    PowerSGD,
    Ring,
    Sharded,
    Strategy,
    TopK,
    resolve,
)
from farandole.parallel.registry import _ELSEWHERE, build, describe, equivalent
from farandole.parallel.registry import STRATEGIES as NAMES

STRATEGIES: list[Strategy] = [
    AllReduce(),
    AllReduce(transport="gloo", bucket_bytes=1000),
    AllReduce(compression="fp16"),
    AllReduce(compression=PowerSGD(rank=2)),
    AllReduce(compression=TopK(share=0.5)),
    Ring(),
    ParameterServer(servers=2),
    ParameterServer(asynchronous=True, staleness=3),
    LocalSGD(every=3),
    DiLoCo(every=7),
    Naive(),
    Pipeline(micro_batches=3, schedule="1f1b", split_at=["2"]),
    Sharded(stage=1),
    Hybrid(data=3, inner=Sharded(stage=2)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_json_gives_it_back(strategy: Strategy) -> None:
    assert build(json.loads(json.dumps(describe(strategy)))) == strategy


class Own(AllReduce):
    """Somebody else's."""


def test_what_is_not_ours_is_left_alone() -> None:
    assert describe(Own()) is None
    assert build({"a": 1}) == {"a": 1}
    assert build("ring") == "ring"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("parameter_server", "There is no strategy 'parameter_server'. Did you mean 'parameter-s"),
        ("magic", "There are auto, allreduce, ring"),
        ("ddp", "There is no strategy 'ddp'. Did you mean 'allreduce'\\?"),
        ("DDP_spawn", "Did you mean 'allreduce'"),
        ("horovod", "Did you mean 'allreduce'"),
        ("fsdp", "Did you mean 'sharded'"),
        ("deepspeed", "Did you mean 'sharded'"),
        ("zero", "Did you mean 'sharded'"),
        ("zero_2", r"Did you mean farandole.parallel.Sharded\(stage=2\)"),
        ("deepspeed_stage_1", r"Sharded\(stage=1\)"),
        ("gpipe", "Did you mean 'pipeline'"),
        (None, "strategy must be a name.*Received: strategy=None"),
        (3, "Received: strategy=3"),
        (Pipeline, "such as Sharded"),
        (nn.Linear(1, 1), "strategy must be a name"),
    ],
)
def test_what_is_no_strategy(wrong: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(wrong)  # type: ignore[arg-type]


def test_what_is_proposed_can_be_had() -> None:
    """Each proposal is a name, or an expression that makes a strategy."""
    for names in _ELSEWHERE.values():
        for name in names:
            assert name not in NAMES
            proposed = equivalent(name).removeprefix("Did you mean ").removesuffix("?")
            made = eval(proposed, {"farandole": farandole, "Sharded": Sharded})  # our own table
            assert resolve(made).name in NAMES
