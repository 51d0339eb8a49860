from __future__ import annotations

import pytest
from torch import nn

from farandole.parallel.sharded.units import Traffic, part_bytes

K = 4 * (8 * 8 + 8)  # bytes of a layer


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_an_update_sends_three_or_two_times_the_network(workers: int) -> None:
    once = 3 * K * (workers - 1) // workers
    for reshard, times in ((True, 3), (False, 2)):
        traffic = Traffic.of(_network(), workers, 1, reshard=reshard)
        traffic.count_backward(last=True)
        assert traffic.sent == times * once


def test_accumulation_sums_once_and_may_gather_once() -> None:
    for reshard, times in ((True, 2 + 2 + 1), (False, 1 + 1)):
        traffic = Traffic.of(_network(), 2, 1, reshard=reshard)
        traffic.count_backward(last=False)
        traffic.count_backward(last=True)
        assert traffic.sent == times * 3 * K // 2


def test_replicas_add_the_all_reduce_of_a_part() -> None:
    traffic = Traffic.of(_network(), 2, 2, reshard=False)
    assert traffic.reduction == 3 * K // 2 + 2 * 3 * (K // 2) // 2


def test_frozen_layers_have_no_gradient_to_sum() -> None:
    network = _network()
    network[1].requires_grad_(False)
    traffic = Traffic.of(network, 2, 1, reshard=True)
    assert traffic.reduction == 2 * K // 2
    assert traffic.backward == 3 * K // 2


def test_parts_are_rounded_up() -> None:
    assert part_bytes(nn.Linear(3, 5).parameters(), 4) == 2 * 3 * 4 + 2 * 4
