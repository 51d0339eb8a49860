from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole.errors import InputError
from farandole.parallel import Sharded, resolve
from farandole.parallel.sharded.strategy import owners
from farandole.testing.strategy_contract import CHECKS, check_all


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_world_of_one_keeps_the_contract(stage: int) -> None:
    assert check_all(Sharded(stage=stage)) == [check.__name__ for check in CHECKS]


def test_its_name() -> None:
    assert resolve("sharded") == Sharded(stage=3)


@pytest.mark.parametrize("stage", [0, 4, "3", None])
def test_an_unknown_stage(stage: Any) -> None:
    with pytest.raises(InputError, match=r"stage must be 1 .* Received: stage="):
        Sharded(stage=stage).check(nn.Linear(2, 2), 2)


def test_a_network_that_is_smaller_than_the_world() -> None:
    network = nn.Sequential(nn.Linear(100, 3), nn.Linear(3, 1))
    Sharded().check(network, 3)
    with pytest.raises(InputError, match=r"over 4 workers: .* at most 3\. Use at most 3 workers"):
        Sharded().check(network, 4)
    with pytest.raises(InputError, match="too small"):
        Sharded().check(nn.ReLU(), 2)
    Sharded(stage=1).check(network, 4)


def test_what_cannot_be_split() -> None:
    network = nn.Module()
    network.temperature = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(InputError, match=r"'temperature' is a single number.*shape \(1,\)"):
        Sharded().check(network, 2)
    network.temperature = nn.Parameter(torch.ones(4))
    network.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))
    with pytest.raises(InputError, match=r"outside of layers have several types"):
        Sharded().check(network, 2)
    Sharded(stage=1).check(network, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adafactor"}, "Adafactor needs whole matrices, but 'sharded' splits them"),
        ({"optimizer": torch.optim.Muon}, "Muon needs whole matrices"),
        ({"optimizer": "lbfgs"}, "needs the whole network on every worker"),
        ({"sync_batch_norm": True}, "sync_batch_norm needs the whole network"),
        ({"freeze": ["0"], "unfreeze_at": 2, "epochs": 2}, "unfreeze_at needs the whole network"),
    ],
)
def test_what_is_refused_before_launch(options: dict[str, Any], message: str) -> None:
    network = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
    data = pa.table({"x": [0.0, 1.0], "y": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(InputError, match=message):
        farandole.train(network, data, strategy="sharded", num_workers=2, **options)


@pytest.mark.parametrize("sizes", [[5, 4, 3, 3, 3], [1], [7, 7, 7], [100, 1, 1, 1]])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_worker_has_much_more_than_in_the_best_case(sizes: list[int], workers: int) -> None:
    found = owners(sizes, [0] * workers)

    def most(choice: tuple[int, ...] | list[int]) -> int:
        return max(
            sum(size for size, owner in zip(sizes, choice, strict=True) if owner == worker)
            for worker in range(workers)
        )

    best = min(map(most, itertools.product(range(workers), repeat=len(sizes))))
    assert most(found) <= best * (4 / 3)  # Graham's bound


def test_tensors_that_a_worker_had_before_count() -> None:
    assert owners([5, 5], loads=[100, 0]) == [1, 1]
