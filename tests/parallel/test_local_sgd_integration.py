from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.digits import accuracy, train_digits
from torch import nn

import farandole
from farandole.errors import TrainingDiverged
from farandole.parallel import AllReduce, DiLoCo, LocalSGD, Synchronizer, Totals
from farandole.testing import strategy_contract as contract
from farandole.testing.training_contract import Case, check_training
from farandole.world import SilentLink, World, current_world

pytestmark = pytest.mark.integration

# What is linear in the gradient: there, a mean of steps is a step with the mean.
LINEAR = (
    Case("plain", {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 3}, validation=0.2),
    Case("accumulated", {"optimizer": "sgd", "accumulation": 2, "epochs": 5}),
    Case("schedule", {"optimizer": "sgd", "schedule": "cosine", "warmup": 3, "epochs": 3}),
)
ALONE, MET = False, True


class _Impatient(SilentLink):
    """Asks for an end from the third question on."""

    def __init__(self) -> None:
        self.asked = 0

    def stop_requested(self) -> bool:
        self.asked += 1
        return self.asked >= 3


def _update(sync: Synchronizer, optimizer: torch.optim.Optimizer, mine: Totals) -> Totals:
    """As the training loop does it."""
    sync.zero_grad()
    if mine.weight:
        network = sync.network
        assert isinstance(network, nn.Linear)
        network(torch.full((int(mine.weight), 3), 1.0 + sync.world.rank)).square().sum().backward()
    totals = sync.reduce_gradients(mine)
    if totals.weight > 0 and math.isfinite(totals.loss):
        sync.step(optimizer)
    return totals


def _is_common(network: nn.Module) -> bool:
    mine = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    return all(torch.equal(mine, other) for other in others)


def _check_meetings(world: World) -> None:
    """They part and meet, and send nothing in between; the last worker has rows at times only."""
    network = nn.Linear(3, 2)
    sync = LocalSGD(every=3).attach(network, world)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    last = world.rank == world.size - 1
    found, sent = [], [0]
    for update in range(7):
        _update(sync, optimizer, Totals(1.0, 0.0 if last and update in (1, 2) else 2.0))
        found.append(_is_common(network))
        sent.append(sync.sent)
    assert found == [ALONE, ALONE, MET, ALONE, ALONE, MET, ALONE]
    outer = 2 * (world.size - 1) * 8 * 4 // world.size + 2 * (world.size - 1) * 7 * 8 // world.size
    assert sent == [0, 0, 0, outer, outer, outer, 2 * outer, 2 * outer]
    sync.end_epoch(3)
    assert _is_common(network)
    assert sync.sent == 3 * outer
    sync.end_epoch(3)
    assert sync.sent == 3 * outer, "no worker has made a step"


def _check_stop_flags(world: World) -> None:
    """What one worker knows, all hear at the same update."""
    network = nn.Linear(3, 2)
    sync = LocalSGD(every=3).attach(network, world)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    last = world.rank == world.size - 1
    calm = Totals(1.0, 1.0)
    for wish in (Totals(1.0, 1.0, interrupted=last), Totals(1.0, 1.0, expired=last)):
        found = [_update(sync, optimizer, mine) for mine in (wish, calm, calm, calm, calm, calm)]
        heard = [totals.interrupted or totals.expired for totals in found]
        assert heard == [False, False, True, False, False, False]
    lost = Totals(math.nan if last else 1.0, 1.0)
    found = [_update(sync, optimizer, mine) for mine in (calm, lost, calm, calm)]
    assert found[1].weight == (0.0 if last else 1.0)
    assert [math.isfinite(totals.loss) for totals in found] == [True, True, False, True]
    assert _is_common(network), "an outer step that was put off comes with the next update"
    assert sync.delayed_totals() == Totals(0.0, 0.0)
    _update(sync, optimizer, replace(lost, interrupted=last))
    late = sync.delayed_totals()
    assert math.isnan(late.loss)
    assert late.interrupted
    assert not late.expired


def _check_endings(world: World) -> list[str]:
    """Through the training loop: if one has to end, all do, in the epoch's last moment at most."""
    last = world.rank == world.size - 1
    told = replace(world, link=_Impatient()) if last else world
    reasons = [train_digits(LocalSGD(every=4), told).progress.reason]
    told = replace(world, link=_Impatient()) if last else world
    reasons.append(train_digits(LocalSGD(every=1000), told, epochs=1).progress.reason)
    for every in (4, 1000):
        wild: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e30, "epochs": 1}
        try:
            train_digits(LocalSGD(every=every), world, **wild)
        except TrainingDiverged as error:
            reasons.append(str(error).split(",")[0])
    return reasons


def _worker() -> dict[str, Any]:
    world = current_world()
    for check in (contract.check_start, contract.check_sums, contract.check_buffers):
        check(LocalSGD(), world)
    for check in (contract.check_no_rows, contract.check_stop_flags, contract.check_agreement):
        check(LocalSGD(every=1), world)
    names = check_training(LocalSGD(every=1), cases=LINEAR)
    _check_meetings(world)
    _check_stop_flags(world)
    if world.size > 2:
        return {"names": names}
    strategies = [AllReduce(), LocalSGD(every=8), DiLoCo(every=10)]
    learned = [accuracy(strategy, world, optimizer="adamw") for strategy in strategies]
    return {"names": names, "endings": _check_endings(world), "learned": learned}


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_local_sgd(workers: int) -> None:
    found = farandole.run(_worker, num_workers=workers, engine="local", timeout=300)
    assert [one["names"] for one in found] == [[case.name for case in LINEAR]] * workers
    if workers > 2:
        return
    assert found[0]["endings"][:2] == ["interrupted", "interrupted"]
    for one in found:
        assert len(one["endings"]) == 4
        assert all(message.startswith("The loss became") for message in one["endings"][2:])
    exact, local, diloco = found[0]["learned"]
    assert exact > 0.94
    assert local > exact - 0.02
    assert diloco > exact - 0.05, "momentum needs more than these 25 outer steps to calm down"
