from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from farandole.data import Columns
from farandole.errors import InputError
from farandole.ragged import Ragged
from farandole.training import losses
from farandole.training.batches import Batcher
from farandole.training.passes import NetworkPasses
from farandole.training.preflight import dry_run, find_signature
from farandole.training.row_reports import RowReport, zero_rows


class Takes(nn.Module):
    """Notes the types and shapes that it is given."""

    def __init__(self, *kinds: type[nn.Module]) -> None:
        super().__init__()
        self.seen: list[tuple[torch.dtype, tuple[int, ...]]] = []
        self.weight = nn.Parameter(torch.ones(1))

    def note(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.seen = [(x.dtype, tuple(x.shape)) for x in inputs]
        return inputs[0].reshape(len(inputs[0]), -1).float()[:, :1] * self.weight


class Two(Takes):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.note(a, b)


class Any_(Takes):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.note(*inputs)


def signed(network: nn.Module, **columns: tuple[tuple[int, ...], str]) -> Any:
    facts = RowReport(
        9,
        {name: shape for name, (shape, _) in columns.items()},
        {name: dtype for name, (_, dtype) in columns.items()},
        [],
    )
    return find_signature(network, Columns(tuple(columns), ("y",)), facts, losses.resolve("mse"))[0]


def test_several_columns_are_positional_arguments() -> None:
    for network in (Two(), Any_()):
        signature = signed(network, ids=((), "int64"), x=((3,), "float32"))
        assert network.seen == [(torch.int64, (2,)), (torch.float32, (2, 3))]
        assert (signature.stacked, signature.floated) == (False, False)


def test_several_columns_are_joined_for_a_network_with_one_argument() -> None:
    signature = signed(nn.Linear(5, 2), a=((), "int64"), b=((3,), "float32"), c=((), "bool"))
    assert signature.stacked
    assert signature.outputs == 2


def test_integers_reach_an_embedding_as_integers_and_a_linear_layer_as_floats() -> None:
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Flatten())
    assert not signed(embedding, ids=((2,), "int64")).floated
    assert signed(nn.Linear(2, 1), ids=((2,), "int64")).floated
    assert signed(nn.Linear(1, 1), x=((), "uint8")).floated


def test_a_single_scalar_column_is_a_column_for_a_linear_layer() -> None:
    assert signed(nn.Linear(1, 1), x=((), "float32")).stacked
    assert not signed(Any_(), x=((), "float32")).stacked


def test_a_size_that_the_network_does_not_take() -> None:
    with pytest.raises(InputError, match=r"'x' with shape \(3,\) of float32.*first layer"):
        signed(nn.Linear(4, 1), x=((3,), "float32"))


class Varies(Takes):
    """Takes sequences and a tensor."""

    ragged_axes = (1, 0)

    def forward(self, x: Ragged, y: torch.Tensor) -> torch.Tensor:
        self.given = x
        return self.note(y)


def test_a_network_is_shown_rows_of_the_sizes_that_there_are() -> None:
    network = Varies()
    about = RowReport(
        9,
        {"x": (None, 3), "y": (4,), "z": ()},
        {"x": "int64", "y": "float32", "z": "float32"},
        [],
        {"x": ((0,), (7,))},
    )
    columns, loss = Columns(("x", "y"), ("z",)), losses.resolve("mse")
    signature, _ = find_signature(network, columns, about, loss)
    assert network.given.sizes.tolist() == [[0], [7]]
    assert network.given.values.shape == (7, 3)
    assert signature.shapes == ((None, 3), (4,))
    assert (signature.stacked, signature.floated) == (False, False)
    zeros = zero_rows(about)
    batch = Batcher(zeros, columns, signature, loss, None, "cpu")(torch.arange(2))
    dry_run(network, NetworkPasses(network, loss, "float32", "cpu"), batch, loss)
    assert network.given.sizes.tolist() == [[0], [7]]
