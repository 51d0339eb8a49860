from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from farandole.networks import NOT_CALLED, evaluation_mode, forward_until


class Forbidden(nn.Module):
    def forward(self, x: Any) -> Any:
        raise AssertionError("must not be called")


def test_nothing_behind_the_module_is_computed() -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), Forbidden())
    rows = torch.randn(4, 3)
    assert torch.equal(forward_until(network, network[1], [rows]), network[1](network[0](rows)))
    assert not network[1]._forward_hooks


def test_what_a_module_is_called_with() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Forbidden()

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x + 1, scale=2)

        inner: nn.Module

    network = Named()
    arguments, named = forward_until(network, network.inner, [torch.zeros(2)], before=True)
    assert arguments[0].tolist() == [1.0, 1.0]
    assert named == {"scale": 2}


def test_a_module_that_is_never_called() -> None:
    network = nn.Sequential(nn.ReLU())
    assert forward_until(network, nn.Linear(1, 1), [torch.zeros(1)]) is NOT_CALLED


def test_no_handler_inside_the_network_catches_the_stop() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ReLU()

        def forward(self, x: torch.Tensor) -> Any:
            try:
                return self.inner(x)
            except Exception:
                return "caught"

    network = Careful()
    assert forward_until(network, network.inner, [torch.ones(1)]).tolist() == [1.0]


def test_other_threads_go_on() -> None:
    network = nn.Sequential(nn.ReLU(), nn.Flatten())
    rows = torch.ones(2, 3)
    wrong: list[Any] = []

    def whole() -> None:
        wrong.extend(1 for _ in range(200) if not torch.equal(network(rows), rows))

    other = threading.Thread(target=whole)
    other.start()
    for _ in range(200):
        forward_until(network, network[0], [rows])
    other.join()
    assert wrong == []


def test_evaluation_mode_is_undone_even_by_an_error() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))

    def fail() -> None:
        with evaluation_mode(network):
            assert not network[0].training
            assert not torch.is_grad_enabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert network[0].training
    assert torch.is_grad_enabled()
