from __future__ import annotations

import pytest
import torch
from torch import nn

from farandole.errors import InputError
from farandole.parallel import AllReduce, Totals, resolve
from farandole.parallel.allreduce import summation_for
from farandole.parallel.summation import TorchSummation
from farandole.testing.strategy_contract import CHECKS, check_all
from farandole.world import World


def test_a_world_of_one_keeps_the_contract() -> None:
    assert check_all(AllReduce()) == [check.__name__ for check in CHECKS]


def test_gradients_are_views_of_one_buffer() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    AllReduce().attach(network, World())
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    storages = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    assert len(storages) == 1


def test_a_count_of_rows_survives_a_network_in_half_precision() -> None:
    sync = AllReduce().attach(nn.Linear(2, 2, dtype=torch.bfloat16), World())
    sync.zero_grad()
    assert sync.reduce_gradients(Totals(0.5, 16_777_215.0)).weight == 16_777_215


def test_an_unknown_strategy() -> None:
    with pytest.raises(
        InputError, match=r"There is no strategy 'gossip'\. There are auto, allreduce"
    ):
        resolve("gossip")
    strategy = AllReduce()
    assert resolve(strategy) is strategy


def test_what_can_be_known_before_launch_is_refused_there() -> None:
    network = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"must be 'auto', .*Received: transport='pigeon'"):
        AllReduce(transport="pigeon").check(network, 2)
    with pytest.raises(
        InputError, match=r"bucket_bytes must be a positive number. Received: bucket_bytes=0"
    ):
        AllReduce(bucket_bytes=0).check(network, 2)
    with pytest.raises(InputError, match=r"'nccl' is for cuda, but the workers have cpu"):
        summation_for("nccl", World(size=2, addresses=("a", "a")))
    with pytest.raises(InputError, match=r"'gloo' is for cpu, but the workers have cuda:1"):
        summation_for("gloo", World(rank=1, size=2, addresses=("a", "a"), device="cuda:1"))


@pytest.mark.parametrize(
    "world",
    [
        World(),
        World(size=2, addresses=("a", "b")),
        World(size=2, addresses=("a", "a"), device="cuda:0"),
    ],
)
def test_shared_memory_is_for_neighbours_with_cpus(world: World) -> None:
    assert isinstance(summation_for("auto", world), TorchSummation)
