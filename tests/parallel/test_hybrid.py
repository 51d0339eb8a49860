from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from farandole.errors import InputError
from farandole.parallel import AllReduce, Hybrid, Pipeline, resolve
from farandole.parallel.replica_mesh import coordinate_of

AS_MANY = "A pipeline of 3 stages needs 3 workers. Received: 2"


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("options", "workers", "message"),
    [
        ({}, 2, r"2 workers can't be split into 2 copies of 2 or more.*Use 4 workers"),
        ({}, 5, "Use 4 or 6 workers"),
        ({"data": 3}, 8, r"Use 6 or 9 workers.*Hybrid\(data=3, inner=Pipeline"),
        ({"data": 1}, 4, "at least 2.*Received: data=1"),
        ({"data": "2"}, 4, "Received: data='2'"),
        ({"inner": Pipeline(stages=3)}, 4, AS_MANY),
        ({"inner": AllReduce()}, 4, "inner must be a strategy that splits"),
        ({}, 8, "too few for 4 stages"),
    ],
)
def test_workers_that_can_not_be_split(options: dict[str, Any], workers: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Hybrid(**options).check(network(), workers)


def test_the_name_stands_for_two_pipelines() -> None:
    assert resolve("hybrid") == Hybrid(data=2, inner=Pipeline())
    Hybrid().check(network(), 4)
    Hybrid().check(network(), 6)
    assert (Hybrid().is_exact, Hybrid().is_whole) == (False, False)


def test_the_workers_of_a_copy_are_neighbours() -> None:
    assert [coordinate_of(rank, 3) for rank in range(6)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
