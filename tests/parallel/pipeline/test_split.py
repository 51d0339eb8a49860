"""Where stages begin, against all splits there are."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from torch import nn

from farandole.errors import InputError
from farandole.parallel.pipeline.layers import Layer, sequential_layers
from farandole.parallel.pipeline.split import (
    balance_stages,
    check_stage_count,
    check_stages,
    starts_at,
)


def slowest(costs: list[float], starts: list[int]) -> float:
    return max(sum(costs[a:b]) for a, b in pairwise([*starts, len(costs)]))


def all_splits(learns: list[bool], stages: int) -> list[list[int]]:
    found = [[0, *cuts] for cuts in combinations(range(1, len(learns)), stages - 1)]
    return [s for s in found if all(any(learns[a:b]) for a, b in pairwise([*s, len(learns)]))]


@pytest.mark.parametrize("seed", range(40))
def test_no_split_has_a_faster_slowest_stage(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, stages = int(random.integers(4, 10)), int(random.integers(1, 5))
    costs: list[float] = random.exponential(size=count).tolist()
    learns: list[bool] = (random.random(count) < 0.6).tolist()
    splits = all_splits(learns, stages)
    if splits:
        starts = balance_stages(costs, learns, stages)
        assert starts in splits
        assert slowest(costs, starts) == pytest.approx(min(slowest(costs, s) for s in splits))


def layers(count: int = 4) -> list[Layer]:
    return sequential_layers(nn.Sequential(*(nn.Linear(2, 2) for _ in range(count))))


def test_names_of_layers() -> None:
    assert starts_at(layers(), ["1", "3"]) == [0, 1, 3]
    nested = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    assert starts_at(sequential_layers(nested), ["1"]) == [0, 1]
    assert starts_at(sequential_layers(nested), ["1.1"]) == [0, 2]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["9"], r"no layer '9'\. There are 0, 1, 2, 3"),
        (["0"], r"none of them the first, '0'\. Received: split_at=\['0'\]"),
        (["2", "1"], r"in the order of the network"),
        (["2", "2"], r"each once"),
    ],
)
def test_names_that_split_nothing(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        starts_at(layers(), names)


def test_a_near_name_is_suggested() -> None:
    body = nn.Sequential()
    body.add_module("first", nn.Linear(2, 2))
    body.add_module("second", nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"Did you mean 'second'\?"):
        starts_at(sequential_layers(body), ["secnod"])


def test_stages_with_nothing_to_learn() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Softmax(1))
    chain = sequential_layers(network)
    with pytest.raises(InputError, match=r"stage from '3' to '3' has no parameters"):
        check_stages(chain, [0, 3])
    with pytest.raises(InputError, match=r"2 of the network's 4 layers have parameters to train"):
        check_stage_count(chain, 3)
    check_stages(chain, [0, 2])
    check_stage_count(chain, 2)
    network[0].requires_grad_(False)
    with pytest.raises(InputError, match=r"stage from '0' to '1' has no parameters to train"):
        check_stages(chain, [0, 2])
    with pytest.raises(InputError, match=r"1 of the network's 4 layers have parameters to train"):
        check_stage_count(chain, 2)
