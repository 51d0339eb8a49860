"""Which modules are sharded by themselves, and the bytes that they cost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from farandole.parallel.sharded.units import Traffic, parameters_outside, part_bytes, units

K = 4 * (8 * 8 + 8)  # bytes of a layer


class Blocks(nn.Module):
    """Layers in a list, and some beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 2)]), nn.ReLU()])
        self.scale = nn.Parameter(torch.ones(1))


def test_children_of_a_sequential_are_units() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3)))
    assert units(network) == [network[0], network[2][0]]
    assert parameters_outside(network) == []


def test_blocks_of_a_list_are_units_and_the_rest_goes_with_the_network() -> None:
    network = Blocks()
    assert units(network) == [network.blocks[0], network.blocks[1][0]]
    assert set(parameters_outside(network)) == {network.scale, *network.entry.parameters()}


def test_a_network_without_a_sequence_is_one_unit() -> None:
    network = nn.Bilinear(2, 2, 2)
    assert units(network) == []
    assert parameters_outside(network) == list(network.parameters())


def test_what_is_inside_of_a_unit_stays_with_it() -> None:
    layer = nn.TransformerEncoderLayer(4, 1)
    assert units(nn.Sequential(layer)) == [layer]


def test_shared_parameters_go_with_the_network() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    network[2].weight = network[0].weight
    assert units(network) == [network[1]]
    assert set(parameters_outside(network)) == {*network[0].parameters(), *network[2].parameters()}
    twice = nn.Linear(3, 3)
    assert units(nn.Sequential(twice, twice, network[1])) == [network[1]]


def test_a_unit_with_several_types_is_opened() -> None:
    mixed = nn.TransformerEncoderLayer(4, 1)
    mixed.linear1.double()
    found = units(nn.Sequential(mixed))
    assert mixed not in found
    assert mixed.linear1 in found
    assert all(len({p.dtype for p in unit.parameters()}) == 1 for unit in found)


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
