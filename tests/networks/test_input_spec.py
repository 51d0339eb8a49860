from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.data.test_image_decoding import SPARK_IMAGE, picture, spark_image
from torch import nn

import farandole
from farandole.data import Columns
from farandole.data.columns import BadRows
from farandole.errors import InputError
from farandole.networks import CNN, GNN, RNN
from farandole.networks.input_spec import (
    dtype_name,
    floating_dtype,
    input_dtype,
    ragged_axes,
    takes_gray,
    varying_advice,
    wrapping_advice,
)
from farandole.ragged import Ragged
from farandole.training import UnusableRows, storage_for


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)
        return found


class Lengths(nn.Module):
    """Takes nothing but a Ragged."""

    ragged_axes = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x: Ragged) -> torch.Tensor:
        found: torch.Tensor = self.layer(x.lengths.float().unsqueeze(1))
        return found


def test_a_sequential_declares_what_its_first_layer_does() -> None:
    gray = nn.Sequential(nn.Sequential(CNN(channels=1, outputs=3)), nn.Softmax(1))
    assert (ragged_axes(gray), takes_gray(gray)) == ((2,), True)
    assert not takes_gray(nn.Sequential(CNN(channels=3, outputs=3)))
    for plain in (nn.Sequential(), nn.Sequential(nn.Flatten(), CNN(channels=1, outputs=3))):
        assert ragged_axes(plain) is None
    images = pa.schema([("x", pa.binary()), ("y", pa.int64())])
    storage = storage_for(gray, Columns(("x",), ("y",)), images)
    assert (storage.axes, storage.gray) == ({"x": 2}, True)


@pytest.mark.parametrize(
    ("axes", "shown"),
    [(1, "(1,)"), (2, "(2,)"), ("1", "(1,)"), ((), "(1,)"), ((1.5,), "(1,)"), ((-1,), "(1,)")],
)
def test_axes_that_make_no_sense(axes: Any, shown: str) -> None:
    network = nn.Linear(1, 1)
    network.ragged_axes = axes
    schema = pa.schema([("x", pa.list_(pa.float32())), ("y", pa.int64())])
    with pytest.raises(InputError) as caught:
        storage_for(network, Columns(("x",), ("y",)), schema)
    assert f"such as {shown} for one column" in str(caught.value)
    assert f"ragged_axes = {axes!r}" in str(caught.value)


def test_advice_for_what_wraps_a_network() -> None:
    assert "'inner' (RNN)" in wrapping_advice(Wrapper(RNN(1, 2)))
    assert "`ragged_axes = (1,)`." in wrapping_advice(Wrapper(RNN(1, 2)))
    assert "`ragged_axes = (2,)` and `channels = 1`" in wrapping_advice(Wrapper(CNN(1, 2)))
    assert "`ragged_axes = (1, 1)`" in wrapping_advice(Wrapper(Wrapper(GNN(3, 2))))
    for network in (RNN(1, 2), nn.Sequential(RNN(1, 2)), nn.Linear(1, 1)):
        assert wrapping_advice(network) == ""
        assert "networks.RNN, CNN or GNN" in varying_advice(network)


def train(network: nn.Module, **columns: Any) -> farandole.TrainingResult:
    table = pa.table({**columns, "label": np.arange(8) % 2})
    return farandole.train(
        network, table, features="x", epochs=1, engine="local", progress=False, batch_size=4
    )


@pytest.mark.parametrize(
    ("network", "column"),
    [
        (Wrapper(RNN(1, 2)), [[1.0] * (1 + n % 3) for n in range(8)]),
        (Wrapper(Lengths()), [[1.0] * 5] * 8),
        (Wrapper(CNN(3, 2)), pa.array([spark_image(picture(3, 4, 3))] * 8, SPARK_IMAGE)),
    ],
    ids=["sizes differ", "one size", "Spark's images"],
)
def test_training_a_wrapper_says_what_it_needs(network: Wrapper, column: Any) -> None:
    with pytest.raises(
        InputError, match=r"Wrapper around it.*`ragged_axes = \((1|2),\)`"
    ) as caught:
        train(network, x=column)
    assert "structs" not in str(caught.value)
    network.ragged_axes = network.inner.ragged_axes
    assert len(train(network, x=column).history) == 1


def test_the_error_travels() -> None:
    error = UnusableRows((BadRows("x", "another size", 1, "3", "size"),), "Declare it.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).endswith("first. Declare it.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_network_computes_in_the_type_of_its_parameters(dtype: torch.dtype) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).to(dtype)
    assert floating_dtype(network) == input_dtype(network) == dtype
    assert getattr(torch, dtype_name(dtype)) == dtype


def test_tokens_are_integers_whatever_the_weights_are() -> None:
    network = RNN(3, 2, vocabulary=5).bfloat16()
    assert (input_dtype(network), floating_dtype(network)) == (torch.int64, torch.bfloat16)
    assert input_dtype(nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2))) == torch.float32


def test_without_floating_point_parameters_it_is_single_precision() -> None:
    integers = nn.Module()
    integers.register_parameter("table", nn.Parameter(torch.arange(3), requires_grad=False))
    for network in (nn.ReLU(), nn.Sequential(), integers):
        assert floating_dtype(network) == input_dtype(network) == torch.float32


def test_a_network_in_bfloat16_learns_and_predicts() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(64, 4))
    table = pa.table({"features": rows.tolist(), "label": (rows[:, 0] > 0).astype(int)})
    network = nn.Linear(4, 2).bfloat16()
    result = farandole.train(
        network, table, features="features", epochs=20, learning_rate=0.1, progress=False
    )
    assert result.signature.floating == "bfloat16"
    assert {p.dtype for p in result.network.parameters()} == {torch.bfloat16}
    assert result.history["train_accuracy"].iloc[-1] > 0.9
