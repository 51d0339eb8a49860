from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from farandole.engines.pickled import Assembly, Pickled


def by_parts(value: object) -> Pickled:
    """Give the value as it arrives on the other end of a connection."""
    pickled = Pickled.of(value)
    arrived = Assembly(pickled.sizes)
    for part in pickled.parts():
        assert not arrived.is_complete
        arrived.add(pickle.loads(pickle.dumps(part)))
    return arrived.pickled()


@pytest.mark.parametrize("way", [by_parts, lambda v: Pickled.from_bytes(Pickled.of(v).to_bytes())])
def test_a_network_comes_back_as_torch_itself_would_pickle_it(way: object) -> None:
    network = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    network[1].weight = nn.Parameter(torch.ones(3, 3, dtype=torch.bfloat16), requires_grad=False)
    network.register_parameter("tied", network[0].weight)
    back, plain = way(network).load(), pickle.loads(pickle.dumps(network))  # type: ignore[operator]
    for name, tensor in plain.state_dict(keep_vars=True).items():
        found = back.state_dict(keep_vars=True)[name]
        assert torch.equal(found, tensor)
        assert (found.dtype, found.requires_grad) == (tensor.dtype, tensor.requires_grad)
    assert back.tied is back[0].weight
    torch.optim.SGD(back.parameters(), 0.1)
    back[1].weight.data.add_(1)  # its memory can be written to


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 3),
        torch.tensor(2.5),
        torch.tensor(2.5).expand(1),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.ones(3).to_sparse(),
        torch.ones(3, requires_grad=True),
    ],
)
def test_tensors_of_every_kind(tensor: torch.Tensor) -> None:
    back = by_parts(tensor).load()
    assert torch.equal(back.to_dense(), tensor.to_dense())
    assert (back.dtype, back.requires_grad) == (tensor.dtype, tensor.requires_grad)


def test_nothing_large_is_copied_before_it_is_sent() -> None:
    weights = {"a": torch.zeros(5_000_000), "b": np.zeros(5_000_000)}
    tracemalloc.start()
    pickled = Pickled.of(weights)
    parts = list(pickled.parts())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pickled.nbytes > 60_000_000
    assert len(parts) > 3
    assert peak < 1_000_000
