from __future__ import annotations

import pytest
import torch
from torch import nn

import farandole
from farandole.parallel import AllReduce, Totals
from farandole.parallel.allreduce import summation_for
from farandole.parallel.shared_memory.summation import SharedMemorySummation
from farandole.parallel.summation import TorchSummation
from farandole.testing.strategy_contract import CHECKS, check_all
from farandole.testing.training_contract import CASES, check_training
from farandole.world import current_world

pytestmark = pytest.mark.integration

BUCKETS = AllReduce(transport="gloo", bucket_bytes=1_000)


def _contracts() -> list[str]:
    _chooses()
    _buckets_are_counted_like_one_sum()
    _alone_or_overlapped_is_the_same()
    found = []
    for strategy in (AllReduce(), AllReduce(transport="gloo"), BUCKETS):
        found += check_all(strategy) + check_training(strategy)
    return found


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_workers_keep_the_contracts(workers: int) -> None:
    names = [check.__name__ for check in CHECKS] + [case.name for case in CASES]
    found = farandole.run(_contracts, num_workers=workers, engine="local", timeout=60)
    assert found == [names * 3] * workers


def _chooses() -> None:
    world = current_world()
    for name, kind in (("auto", SharedMemorySummation), ("gloo", TorchSummation)):
        summation = summation_for(name, world)
        assert isinstance(summation, kind)
        summation.close()


def _gradients(strategy: AllReduce, passes: int) -> tuple[list[torch.Tensor], int]:
    """After an update for which each worker has rows of its own, the last one none."""
    world = current_world()
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))
    sync = strategy.attach(network, world)
    count = 0 if world.rank == world.size - 1 else passes
    sync.zero_grad(count)
    for number in range(count):
        torch.manual_seed(100 * world.rank + number)
        network(torch.randn(4, 16)).square().sum().backward()
    sync.reduce_gradients(Totals(0.0, 4.0 * count))
    found = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    sent = sync.sent
    sync.close()
    return found, sent


def _alone_or_overlapped_is_the_same() -> None:
    for passes in (1, 3):
        shared, _ = _gradients(AllReduce(), passes)
        plain, _ = _gradients(AllReduce(transport="gloo"), passes)
        parts, _ = _gradients(BUCKETS, passes)
        assert any(gradient.ne(0).any() for gradient in plain)
        for three in zip(shared, plain, parts, strict=True):
            torch.testing.assert_close(three[0], three[1])
            torch.testing.assert_close(three[2], three[1])


def _buckets_are_counted_like_one_sum() -> None:
    size = current_world().size
    length = 4 * (6 * (16 * 16 + 16) + 6)
    assert _gradients(AllReduce(transport="gloo"), 1)[1] == 2 * (size - 1) * length // size
    parts = _gradients(BUCKETS, 1)[1]
    assert abs(parts - 2 * (size - 1) * length / size) < 12  # each is rounded down
    assert _gradients(AllReduce(), 1)[1] == 0
