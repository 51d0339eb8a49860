"""What is refused before anything is launched, because strategy and recipe don't go together."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from farandole.api.strategy_choice import check_strategy, choose_strategy
from farandole.errors import InputError
from farandole.parallel import AllReduce, Hybrid, ParameterServer, Pipeline, Strategy
from farandole.training.recipe import Recipe

ASYNCHRONOUS = ParameterServer(asynchronous=True)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("strategy", "recipe", "workers", "message"),
    [
        (Pipeline(split_at=["2"]), {"freeze": ["0"]}, 2, "stage from '0' to '1' has no parameters"),
        (Pipeline(), {"freeze": ["0", "2"]}, 2, "1 of the network's 4 layers have parameters to"),
        (Pipeline(), {"freeze": "all but head"}, 2, "Use at most 1 workers in a pipeline"),
        (Hybrid(inner=Pipeline(split_at=["3"])), {"freeze": ["3"]}, 4, "stage from '3' to '3'"),
        (ASYNCHRONOUS, {"sync_batch_norm": True}, 2, r"asynchronous ones don't wait\. Received"),
    ],
)
def test_what_does_not_go_together(
    strategy: Strategy, recipe: dict[str, Any], workers: int, message: str
) -> None:
    net = network()
    with pytest.raises(InputError, match=message):
        choose_strategy(strategy, net, Recipe(**recipe), workers)
    assert all(p.requires_grad for p in net.parameters()), "only workers freeze layers"


@pytest.mark.parametrize(
    ("strategy", "recipe", "workers"),
    [
        (Pipeline(split_at=["2"]), {"freeze": ["2"]}, 2),
        (Pipeline(), {"freeze": ["0"]}, 2),
        (AllReduce(), {"freeze": "all but head", "sync_batch_norm": True}, 2),
        (ParameterServer(), {"sync_batch_norm": True}, 2),
        (ASYNCHRONOUS, {"sync_batch_norm": True}, 1),
    ],
)
def test_what_does(strategy: Strategy, recipe: dict[str, Any], workers: int) -> None:
    net = network()
    net[2].weight.requires_grad_(False)
    check_strategy(strategy, net, Recipe(**recipe), workers)
    assert [p.requires_grad for p in net.parameters()] == [True, True, False, *[True] * 3]


def test_auto_leaves_out_what_does_not_go_together() -> None:
    chosen, why = choose_strategy("auto", network(), Recipe(freeze="all but head"), 2)
    assert chosen.is_whole
    assert why
