from __future__ import annotations

import copy

import torch
from torch import nn

from farandole.parallel.sharded.fully_sharded import LocalShardSteps, is_elementwise


def test_which_optimizers_work_value_by_value() -> None:
    assert is_elementwise(torch.optim.SGD)
    assert not is_elementwise(torch.optim.Adafactor)
    assert not is_elementwise(type("Own", (torch.optim.Adam,), {}))


def test_plain_tensors_move_as_they_would_have() -> None:
    network = nn.Linear(3, 2)
    twin = copy.deepcopy(network)
    optimizer = torch.optim.Adagrad(network.parameters(), lr=0.1)  # has state from the start
    expected = torch.optim.Adagrad(twin.parameters(), lr=0.1)
    steps = LocalShardSteps()
    for _ in range(3):
        for one in (network, twin):
            one.zero_grad()
            one(torch.ones(4, 3)).square().sum().backward()
        steps.step(optimizer)
        expected.step()
    assert torch.equal(network.weight, twin.weight)
    assert torch.equal(network.bias, twin.bias)
