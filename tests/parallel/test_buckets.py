from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from farandole.keras_models import KerasNetwork, require_torch_backend
from farandole.parallel.base import Totals
from farandole.parallel.buckets import gradients_per_bucket
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.summation import TorchSummation
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm
from farandole.world import World

TAIL = len(fields(Totals))
"""Numbers that travel behind the gradients."""


class _Work:
    def __init__(self, finish: Callable[[], None]) -> None:
        self.wait = finish


class _Doubling(TorchSummation):
    """Two workers that have the same rows: a sum is twice what one has, once it is waited for."""

    def __init__(self) -> None:
        super().__init__(workers=2)
        self.started: list[int] = []

    def start(self, flat: torch.Tensor) -> Any:
        self.started.append(flat.numel())
        return _Work(lambda: flat.mul_(2))

    def sum_(self, flat: torch.Tensor) -> None:
        self.start(flat).wait()


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 1))


def _attached(network: nn.Module, most: int = 80) -> tuple[FlatGradients, _Doubling]:
    summation = _Doubling()
    return FlatGradients(network, World(size=2), summation, bucket_bytes=most), summation


def _learn(sync: FlatGradients, rows: torch.Tensor) -> None:
    loss = sync.network(rows).square().sum()
    loss.backward()


def _finished(sync: FlatGradients, rows: torch.Tensor) -> Totals:
    return sync.reduce_gradients(Totals(1.0, float(len(rows))))


def _expected(rows: torch.Tensor) -> list[torch.Tensor]:
    network = _network()
    network(rows).square().sum().backward()
    return [p.grad / len(rows) for p in network.parameters() if p.grad is not None]


def _check(sync: FlatGradients, rows: torch.Tensor) -> None:
    for parameter, expected in zip(sync.network.parameters(), _expected(rows), strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_buckets_are_full_in_the_order_of_gradients() -> None:
    assert gradients_per_bucket([100], most=10) == [1]
    assert gradients_per_bucket([3, 3, 3, 3], most=6, first=1) == [1, 2, 1]
    assert gradients_per_bucket([], most=6) == []
    assert sum(gradients_per_bucket(list(range(100)), most=77)) == 100


def test_sums_start_in_the_backward_pass_and_give_the_mean() -> None:
    rows = torch.randn(5, 4)
    sync, summation = _attached(_network())
    for _ in range(2):
        summation.started.clear()
        sync.zero_grad()
        _learn(sync, rows)
        # The last layers' first; the first layer's waits for the totals, four more numbers.
        assert summation.started == [5 + 20, 20]
        totals = _finished(sync, rows)
        assert summation.started == [5 + 20, 20, 20 + TAIL]
        assert (totals.loss, totals.weight) == (2.0, 10.0)
        _check(sync, rows)


def test_nothing_starts_before_the_last_pass() -> None:
    rows = torch.randn(6, 4)
    sync, summation = _attached(_network())
    sync.zero_grad(3)
    for part in rows.split(2):
        assert summation.started == []
        _learn(sync, part)
    assert len(summation.started) > 1
    _finished(sync, rows)
    _check(sync, rows)


def test_a_worker_without_rows_starts_the_same_sums_in_the_same_order() -> None:
    sync, summation = _attached(_network())
    sync.zero_grad()
    _learn(sync, torch.ones(1, 4))
    _finished(sync, torch.ones(1, 4))
    usual = list(summation.started)
    summation.started.clear()
    sync.zero_grad(0)
    sync.reduce_gradients(Totals(0.0, 0.0))
    assert summation.started == usual


def test_an_unused_parameter_holds_up_what_comes_after_it_but_not_for_ever() -> None:
    network = _network()
    sync, summation = _attached(network)
    sync.zero_grad()
    usual = network[3]
    network[:3](torch.ones(2, 4)).sum().backward()  # without the last layer
    assert summation.started == []
    sync.reduce_gradients(Totals(1.0, 2.0))
    assert sum(summation.started) == 65 + TAIL
    assert usual.weight.grad.eq(0).all()
    assert network[0].weight.grad.ne(0).any()


def test_frozen_parameters_are_in_no_bucket_until_a_refresh() -> None:
    rows = torch.randn(3, 4)
    network = _network()
    network[:2].requires_grad_(False)
    sync, summation = _attached(network)
    sync.zero_grad()
    _learn(sync, rows)
    _finished(sync, rows)
    assert sum(summation.started) == 25 + TAIL
    network.requires_grad_(True)
    sync.update_trainable()
    summation.started.clear()
    sync.zero_grad()
    _learn(sync, rows)
    _finished(sync, rows)
    assert sum(summation.started) == 65 + TAIL
    _check(sync, rows)


def test_small_networks_keep_one_sum() -> None:
    rows = torch.randn(3, 4)
    sync, summation = _attached(_network(), most=25 << 20)
    sync.zero_grad()
    _learn(sync, rows)
    assert summation.started == []
    _finished(sync, rows)
    assert summation.started == [65 + TAIL]


def test_each_dtype_has_buckets_of_its_own() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4).double()
            self.second = nn.Linear(4, 4)
            self.third = nn.Linear(4, 4).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x.double()).float()
            return self.third(self.second(x).double())

    rows = torch.randn(3, 4)
    network = Mixed()
    sync, summation = _attached(network, most=16)
    sync.zero_grad()
    _learn(sync, rows)
    assert summation.started
    _finished(sync, rows)
    assert sum(summation.started) == 3 * 20 + 2 * TAIL
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad(set_to_none=True)
    network(rows).square().sum().backward()
    for mine, whole in zip(found, network.parameters(), strict=True):
        torch.testing.assert_close(mine, whole.grad / 3)


def test_a_pass_too_many_is_an_error() -> None:
    sync, _ = _attached(_network())
    sync.zero_grad(1)
    _learn(sync, torch.ones(1, 4))
    with pytest.raises(RuntimeError, match="more backward passes"):
        _learn(sync, torch.ones(1, 4))


def test_passes_outside_of_an_update_are_nobodys_business() -> None:
    sync, summation = _attached(_network())
    _learn(sync, torch.ones(1, 4))
    _learn(sync, torch.ones(1, 4))
    assert summation.started == []
    network = sync.network
    sync.zero_grad()
    sync.close()
    network(torch.ones(1, 4)).sum().backward()
    assert summation.started == []


def test_collectives_of_a_norm_are_not_mixed_with_those_of_buckets() -> None:
    norm = SynchronizedBatchNorm.like(nn.BatchNorm1d(4))
    sync, summation = _attached(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4)), most=16)
    sync.zero_grad()
    sync.reduce_gradients(Totals(1.0, 1.0))
    assert len(summation.started) == 1


def test_nor_are_those_of_a_norm_of_keras() -> None:
    keras = require_torch_backend()
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
    network = KerasNetwork(keras.Sequential([keras.Input((4,)), *layers]))
    apart, _ = _attached(network, most=16)
    apart.zero_grad()
    assert len(apart._buckets._buckets) > 1  # type: ignore[union-attr]
    network.synchronize_batch_norm(lambda sums: sums)
    sync, summation = _attached(network, most=16)
    sync.zero_grad()
    sync.reduce_gradients(Totals(1.0, 1.0))
    assert len(summation.started) == 1
