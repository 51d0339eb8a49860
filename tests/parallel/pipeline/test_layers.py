"""Which networks are chains, and what their parts look like."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from farandole.errors import InputError
from farandole.networks import CNN, MLP
from farandole.parallel.pipeline.layers import (
    StageModule,
    check_not_shared,
    release_layers,
    sequential_layers,
    trace_layers,
)
from farandole.parallel.pipeline.split import measure_costs


class Wrapper(nn.Module):
    def __init__(self, *, skips: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        self.skips = skips

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(rows)
        return found + rows if self.skips else found


class Own(nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        for module in self:
            input = module(input) + input
        return input


def names(network: nn.Module) -> list[str]:
    return [layer.name for layer in sequential_layers(network)]


def test_chains() -> None:
    nested = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    assert names(nested) == ["0", "1.0", "1.1"]
    assert names(MLP([4, 8, 8, 3])) == ["hidden.0", "hidden.1", "last", "last_activation"]
    assert names(Wrapper(skips=False)) == ["body.0", "body.1", "body.2"]
    assert names(nn.Sequential(Own(nn.Linear(3, 3)), nn.Linear(3, 1))) == ["0", "1"]


@pytest.mark.parametrize("network", [CNN(channels=1, outputs=2), Own(nn.Linear(3, 3)), nn.ReLU()])
def test_other_networks(network: nn.Module) -> None:
    with pytest.raises(InputError, match=r"can't be split by layers.*nn\.Sequential"):
        sequential_layers(network)


@pytest.mark.parametrize(
    "network",
    [
        MLP([4, 8, 8, 3], activation="tanh", batch_norm=True, residual=True, seed=0),
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(6, 3)),
    ],
)
def test_parts_in_a_row_are_the_network(network: nn.Module) -> None:
    layers = sequential_layers(network.eval())
    rows = torch.randn(5, 4)
    values = trace_layers(layers, network, [torch.zeros(2, 4)])
    for cut in range(1, len(layers)):
        front, back = StageModule(layers[:cut], values[cut].dtype), StageModule(layers[cut:], None)
        assert torch.equal(back(front(rows.clone())), network(rows.clone()))
        assert {**front.state_dict(), **back.state_dict()}.keys() == network.state_dict().keys()


def test_a_network_that_does_more_than_its_layers() -> None:
    plain, skipping = Wrapper(skips=False), Wrapper(skips=True)
    trace_layers(sequential_layers(plain), plain, [torch.zeros(2, 3)])
    with pytest.raises(InputError, match="Wrapper does more than to call its layers"):
        trace_layers(sequential_layers(skipping), skipping, [torch.zeros(2, 3)])


def test_only_one_tensor_goes_from_layer_to_layer() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3), nn.Linear(3, 3))
    with pytest.raises(InputError, match=r"before '2' gives a tuple"):
        trace_layers(sequential_layers(network), network, [torch.zeros(2, 3)])
    with pytest.raises(InputError, match="takes 2 inputs, but only one tensor"):
        trace_layers(sequential_layers(network), network, [torch.zeros(2, 3)] * 2)


def test_looking_at_a_network_leaves_no_trace() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    layers = sequential_layers(network)
    values = trace_layers(layers, network, [torch.zeros(2, 3)])
    assert len(measure_costs(layers, values[:-1])) == 4
    assert all(module.training for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


def test_layers_that_share_a_parameter() -> None:
    one, other, activation = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU()
    check_not_shared(sequential_layers(nn.Sequential(one, activation, other, activation)))
    other.weight = one.weight
    with pytest.raises(InputError, match=r"'0' and '2' share 'weight'"):
        check_not_shared(sequential_layers(nn.Sequential(one, activation, other, activation)))


def test_layers_of_others_keep_names_and_shapes_but_no_memory() -> None:
    network = nn.Sequential(
        OrderedDict(a=nn.Linear(100, 100), b=nn.BatchNorm1d(100), c=nn.Linear(100, 5))
    )
    shapes = {name: (t.shape, t.dtype) for name, t in network.state_dict().items()}
    held = list(network.parameters())
    release_layers(sequential_layers(network)[:2])
    assert {name: (t.shape, t.dtype) for name, t in network.state_dict().items()} == shapes
    assert [p.untyped_storage().nbytes() for p in held] == [4, 4, 4, 4, 2000, 20]
