from __future__ import annotations

import pytest
import torch
from torch import nn

import farandole
from farandole.errors import InputError


def test_shapes_and_counts_of_many_layers() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )
    found = farandole.summary(network, (1, 8, 8))
    assert [layer.shape for layer in found.layers] == [(4, 6, 6)] * 3 + [(144,), (10,)]
    assert [layer.parameters for layer in found.layers] == [40, 8, 0, 0, 1450]
    assert found.parameters == sum(p.numel() for p in network.parameters())
    assert "4 × 6 × 6" in str(found)
    assert str(found).endswith("1,498 parameters")


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3)
        self.memory = nn.GRU(3, 4, batch_first=True)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, ids: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        return self.memory(self.table(ids))[0][:, -1] * self.scale + extra


def test_a_network_of_ones_own_with_example_tensors() -> None:
    network = Custom()
    network.table.requires_grad_(False)
    found = farandole.summary(network, torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 4))
    assert {layer.name: layer.shape for layer in found.layers} == {
        "": (4,),
        "table": (5, 3),
        "memory": (5, 4),
    }
    assert found.parameters - found.trainable == 30
    assert str(found).endswith("of them frozen")
    assert not network._forward_hooks
    assert network.training


def test_shared_and_lazy_layers() -> None:
    layer = nn.Linear(3, 3)
    assert farandole.summary(nn.Sequential(layer, layer), 3).parameters == 12
    lazy = nn.Sequential(nn.LazyLinear(2))
    assert farandole.summary(lazy, 7).parameters == 16
    assert farandole.summary(lazy).layers[0].shape is None
    assert lazy[0].has_uninitialized_params()


def test_inputs_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="can't take these inputs"):
        farandole.summary(nn.Linear(3, 1), 4)
