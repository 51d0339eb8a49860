from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.parallel.digits import accuracy
from torch import nn

import farandole
from farandole.errors import WorkerFailed
from farandole.parallel import AllReduce, ParameterServer, Totals
from farandole.parallel.server.asynchronous import Asynchronous, split_by_size
from farandole.world import World, current_world

pytestmark = pytest.mark.integration


def test_workers_at_their_own_pace() -> None:
    told = farandole.run(_check_everything, num_workers=3, engine="local", timeout=60)
    assert told == ["done"] * 3


def _check_everything() -> str:
    world = current_world()
    for servers, staleness in ((1, 3), (2, 0), (3, 5)):
        _check_staleness(world, servers, staleness)
    _check_one_that_diverges(world)
    _check_stop_flags(world)
    _check_thaw(world)
    return "done"


def _attach(
    world: World, servers: int, staleness: int
) -> tuple[nn.Module, Asynchronous, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    strategy = ParameterServer(asynchronous=True, servers=servers, staleness=staleness)
    sync = strategy.attach(network, world)
    assert isinstance(sync, Asynchronous)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    sync.set_optimizer(optimizer)
    return network, sync, optimizer


def _update(
    network: nn.Module, sync: Asynchronous, optimizer: torch.optim.Optimizer, mine: Totals
) -> Totals:
    """As the loop does it; the gradient of every parameter is that of 2 rows."""
    sync.zero_grad()
    if mine.weight:
        network(torch.randn(2, 3)).square().sum().backward()
    totals = sync.reduce_gradients(mine)
    if totals.weight and math.isfinite(totals.loss):
        sync.step(optimizer)
    return totals


def _check_staleness(world: World, servers: int, staleness: int) -> None:
    """One worker is slow, one has no rows: the others go on, but not too far."""
    network, sync, optimizer = _attach(world, servers, staleness)
    has_rows = world.rank != 0
    for _ in range(2):  # epochs: the slow one is slow to begin, too
        begun, ended = [], []
        time.sleep(0.3 * (world.rank == 2))
        for _ in range(12):
            time.sleep(0.05 * (world.rank == 2))
            begun.append(time.monotonic())
            _update(network, sync, optimizer, Totals(1.0, 2.0 * has_rows))
            ended.append(time.monotonic())
        assert sync.agree_on_stop(None) is None
        sync.end_epoch(2)
        _assert_bounded(world, begun, ended, staleness)
        _assert_same(network)
    if world.rank == 0:
        assert sync.lead == staleness, "without rows it runs ahead as far as it may"
    assert sync.sent == 2 * _expected_bytes(network, servers, world, pushes=12 * has_rows)
    sync.close()


def _assert_bounded(world: World, begun: list[float], ended: list[float], staleness: int) -> None:
    """By a clock that all processes share: nobody ends update k before all have begun k - s."""
    times: list[tuple[list[float], list[float]]] = [([], [])] * world.size
    dist.all_gather_object(times, (begun, ended))
    for _, ends in times:
        for begins, _ in times:
            for number in range(staleness, 12):
                assert ends[number] >= begins[number - staleness]


def _expected_bytes(network: nn.Module, servers: int, world: World, pushes: int) -> int:
    """Gradients to all other servers; an answer to every update of others, and to `end_epoch`."""
    sizes = [4 * sum(p.numel() for p in part) for part in split_by_size(network, servers)]
    own = sizes[world.rank] if world.rank < len(sizes) else 0
    return pushes * (sum(sizes) - own) + own * (world.size - 1) * (12 + 1)


def _assert_same(network: nn.Module) -> None:
    state = torch.cat([value.double().reshape(-1) for value in network.state_dict().values()])
    leaders = state.clone()
    dist.broadcast(leaders, src=0)
    assert torch.equal(state, leaders)


def _check_one_that_diverges(world: World) -> None:
    """Its loss is NaN: all leave, long before they would have been done."""
    network, sync, optimizer = _attach(world, 2, 2)
    reason = None
    for number in range(2000):
        loss = math.nan if world.rank == 2 and number == 5 else 1.0
        if not math.isfinite(_update(network, sync, optimizer, Totals(loss, 2.0)).loss):
            reason = "lost"
            break
    assert number < 1000
    assert sync.agree_on_stop(reason) == "lost"
    sync.close()


def _check_stop_flags(world: World) -> None:
    """What the last one flags reaches the others with the servers' answers."""
    network, sync, optimizer = _attach(world, 1, 2)
    for number in range(2000):
        flags = world.rank == 2 and number == 5
        totals = _update(network, sync, optimizer, Totals(1.0, 2.0, interrupted=flags))
        if totals.interrupted:
            break
    assert number < 1000
    assert not totals.expired
    reasons = [None, "first", "second"]
    assert sync.agree_on_stop(reasons[world.rank]) == "first"
    sync.close()


def _check_thaw(world: World) -> None:
    """Frozen parameters stay, and don't travel, until `update_trainable`."""
    network, sync, optimizer = _attach(world, 2, 1)
    first = network.get_submodule("0")
    first.requires_grad_(False)
    sync.update_trainable()
    before = network.get_parameter("0.weight").detach().clone()
    for is_frozen in (True, False):
        if not is_frozen:
            first.requires_grad_(True)
            sync.update_trainable()
        for _ in range(3):
            _update(network, sync, optimizer, Totals(1.0, 2.0))
        sync.agree_on_stop(None)
        sync.end_epoch(2)
        assert torch.equal(network.get_parameter("0.weight"), before) == is_frozen
        _assert_same(network)
    sync.close()


class _Failing(torch.optim.SGD):
    """Fails in the server, which is where it is applied."""

    steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        if self.steps == 6:
            raise ArithmeticError("no more steps")
        super().step()


def test_what_fails_in_a_server_is_raised_by_its_worker() -> None:
    with pytest.raises(WorkerFailed, match="rank 0 failed: ArithmeticError: no more steps"):
        farandole.run(_train_with_failing_server, num_workers=2, engine="local", timeout=60)


def _train_with_failing_server() -> None:
    world = current_world()
    network, sync, _ = _attach(world, 1, 2)
    optimizer = _Failing(network.parameters(), lr=0.1)
    sync.set_optimizer(optimizer)
    if world.rank == 0:  # its thread works, while it waits for the other
        sync.zero_grad()
        sync.agree_on_stop(None)
        return
    for _ in range(20):
        _update(network, sync, optimizer, Totals(1.0, 2.0))


SEEDS = range(2)
DIGITS: dict[str, Any] = {
    "epochs": 10, "batch_size": 64, "schedule": "cosine", "learning_rate": 0.1,
    "optimizer": "sgd", "optimizer_options": {"momentum": 0.9},
}  # fmt: skip


def _accuracies(servers: int) -> list[float]:
    strategy = ParameterServer(asynchronous=True, servers=servers)
    return [accuracy(strategy, current_world(), seed=seed, **DIGITS) for seed in SEEDS]


@pytest.mark.parametrize(
    ("workers", "servers"), [(2, 1), pytest.param(3, 2, marks=pytest.mark.exhaustive)]
)
def test_asynchronous_training_is_as_good_on_the_digits(workers: int, servers: int) -> None:
    """On average: who is faster differs from run to run, and with it some rows."""
    synchronous = [accuracy(AllReduce(), World(), seed=seed, **DIGITS) for seed in SEEDS]
    found = farandole.run(_accuracies, (servers,), num_workers=workers, engine="local", timeout=120)
    assert np.mean(synchronous) > 0.96
    assert np.mean(found[0]) > np.mean(synchronous) - 0.02, (found[0], synchronous)
