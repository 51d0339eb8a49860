from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farandole.errors import InputError
from farandole.parallel import DiLoCo, LocalSGD, Totals, resolve
from farandole.testing import strategy_contract as contract
from farandole.testing.training_contract import CASES, check_training
from farandole.world import World

NETWORK = nn.Linear(2, 1)


def test_names() -> None:
    assert resolve("local-sgd") == LocalSGD(every=8)
    assert resolve("diloco") == DiLoCo()
    assert [resolve(name).name for name in ("local-sgd", "diloco")] == ["local-sgd", "diloco"]
    assert not LocalSGD().is_exact


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (LocalSGD(every=0), "every=0"),
        (LocalSGD(outer_learning_rate=0.0), "outer_learning_rate=0.0"),
        (LocalSGD(outer_momentum=1.0), "outer_momentum=1.0"),
        (LocalSGD(nesterov=True), "outer_momentum=0.0, nesterov=True"),
    ],
)
def test_wrong_settings_are_told_before_launch(strategy: LocalSGD, message: str) -> None:
    with pytest.raises(InputError, match=message):
        strategy.check(NETWORK, 2)


def test_a_worker_alone_trains_as_ever() -> None:
    """It is its own mean, whatever its optimizer and however rarely it meets itself."""
    assert check_training(LocalSGD(every=3)) == [case.name for case in CASES]


def test_a_world_of_one_keeps_the_contract() -> None:
    for check in contract.CHECKS:
        check(LocalSGD(every=1), World())


def test_the_outer_step_is_nesterovs() -> None:
    """Against the rule as Sutskever wrote it, for three outer steps of two inner ones."""
    parameter = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    network = nn.ParameterList([parameter])
    strategy = LocalSGD(every=2, outer_learning_rate=0.7, outer_momentum=0.9, nesterov=True)
    sync = strategy.attach(network, World())
    inner = torch.optim.SGD([parameter], lr=0.1)
    common = inside = np.array([1.0, -2.0])
    velocity = np.zeros(2)
    for update in range(6):
        sync.zero_grad()
        (parameter.square() / 2).sum().mul(3.0).backward()  # three rows of the same loss
        sync.reduce_gradients(Totals(1.0, 3.0))
        sync.step(inner)
        inside = inside - 0.1 * inside
        if update % 2:
            velocity = 0.9 * velocity + (common - inside)
            common = inside = common - 0.7 * ((common - inside) + 0.9 * velocity)
        np.testing.assert_allclose(parameter.detach().numpy(), inside, rtol=1e-12)


def test_outer_momentum_outlives_a_thaw() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    network[0].requires_grad_(False)
    sync = DiLoCo(every=1).attach(network, World())
    inner = torch.optim.SGD(network.parameters(), lr=0.1)

    def update() -> float:
        before = network.get_parameter("1.bias").item()
        sync.zero_grad()
        network(torch.zeros(1, 2).double()).sum().backward()
        sync.reduce_gradients(Totals(0.0, 1.0))
        sync.step(inner)
        return before - network.get_parameter("1.bias").item()

    first = update()
    network.requires_grad_(True)
    sync.update_trainable()
    still = network.get_parameter("0.weight").clone()
    assert update() == pytest.approx(first * (1 + 0.9 + 0.81) / 1.9)
    assert torch.equal(network.get_parameter("0.weight"), still), "its gradient was zero"
    assert not torch.equal(network.get_parameter("0.bias"), torch.zeros(2).double())


def test_a_loss_that_is_not_finite_moves_nothing() -> None:
    network = nn.Linear(2, 1)
    sync = LocalSGD(every=3).attach(network, World())
    sync.zero_grad()
    assert sync.reduce_gradients(Totals(math.inf, 2.0)) == Totals(0.0, 0.0)
    assert math.isnan(sync.delayed_totals().loss)
    assert sync.delayed_totals() == Totals(0.0, 0.0), "it was told"


def test_an_epoch_without_rows_moves_nothing() -> None:
    """Not even by the momentum that is left of the one before."""
    network = nn.Linear(2, 1)
    sync = DiLoCo().attach(network, World())
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    sync.zero_grad()
    network(torch.ones(1, 2)).sum().backward()
    sync.reduce_gradients(Totals(1.0, 1.0))
    sync.step(inner)
    sync.end_epoch(1)
    before = network.weight.detach().clone()
    sync.zero_grad()
    sync.reduce_gradients(Totals(0.0, 0.0))
    sync.end_epoch(0)
    assert torch.equal(network.weight, before)


def test_who_is_new_takes_the_outer_momentum_of_all() -> None:
    def stepped() -> tuple[Any, torch.optim.Optimizer, dict[Any, str]]:
        torch.manual_seed(0)
        network = nn.Linear(2, 1)
        sync = DiLoCo(every=1).attach(network, World())
        optimizer = torch.optim.Adam(network.parameters())
        return sync, optimizer, {p: name for name, p in network.named_parameters()}

    sync, optimizer, names = stepped()
    sync.zero_grad()
    sync.network(torch.ones(3, 2)).sum().backward()
    sync.reduce_gradients(Totals(1.0, 3.0))
    sync.step(optimizer)
    state = sync.own_state(optimizer, names)
    new, its_optimizer, its_names = stepped()
    new.load_own_states([], state, its_optimizer, its_names)
    momenta = [dict(new.own_state(its_optimizer, its_names)["outer"]), dict(state["outer"])]
    assert list(momenta[0]) == list(momenta[1]) != []
    for name in momenta[1]:
        mine, leaders = (one[name]["momentum_buffer"] for one in momenta)
        assert torch.equal(mine, leaders)
