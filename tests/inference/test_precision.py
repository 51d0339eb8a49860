"""Lower precision: what it costs, and that no network breaks over it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.inference.precision import _survives, lowered
from farandole.networks import CNN, GNN, MLP, RNN
from farandole.pretrained import MobileNetV2, ResNet

Array = np.ndarray[Any, Any]
LOWER = ("bfloat16", "int8")
random = np.random.default_rng(0)


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    x, y = load_digits(return_X_y=True)
    order = random.permutation(len(x))
    return (x[order] / 16).astype(np.float32), y[order]


def trained(network: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> nn.Module:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(steps):
        rows = torch.arange(step * 64, step * 64 + 64) % len(x)
        optimizer.zero_grad()
        F.cross_entropy(network(x[rows]), y[rows]).backward()
        optimizer.step()
    return network.eval()


@pytest.mark.parametrize("kind", ["MLP", "CNN"])
def test_what_lower_precision_costs_on_digits(
    kind: str, digits: tuple[Array, Array], record_property: Callable[[str, object], None]
) -> None:
    x, y = digits
    shape = (64,) if kind == "MLP" else (1, 8, 8)
    network: nn.Module = MLP([64, 64, 10], seed=0)
    if kind == "CNN":
        network = CNN(channels=1, outputs=10, filters=(8, 16), seed=0)
    learn, test = x[:1000].reshape(-1, *shape), x[1000:].reshape(-1, *shape)
    trained(network, torch.from_numpy(learn), torch.from_numpy(y[:1000]), 150)
    about = Signature(
        features=("x",), shapes=(shape,), dtypes=("float32",), head="softmax", outputs=10
    )
    found = {}
    for precision in (None, *LOWER):
        predict = Predictor(network, about, precision=precision)
        found[precision or "float32"] = float((predict(test).prediction == y[1000:]).mean())
    for name, accuracy in found.items():
        record_property(f"accuracy of {kind} in {name}", round(accuracy, 4))
    print(f"\n{kind} on digits: " + ", ".join(f"{n} {a:.2%}" for n, a in found.items()))
    assert found["float32"] > 0.85
    assert found["bfloat16"] > found["float32"] - 0.02
    assert found["int8"] > found["float32"] - 0.02


def sequences(widths: tuple[int, ...] = (3,)) -> list[Array]:
    return [random.normal(size=(1 + n % 4, *widths)).astype(np.float32) for n in range(20)]


def images(channels: int) -> list[Array]:
    return [random.integers(0, 255, (9 + n % 3, 8, channels), np.uint8) for n in range(20)]


EDGES = [np.array([[0, 0]])] * 20
CASES: dict[str, tuple[nn.Module, dict[str, Any]]] = {
    "MLP": (
        MLP([4, 8, 8, 3], batch_norm=True, residual=True, seed=0),
        {"x": random.normal(size=(20, 4)).astype(np.float32)},
    ),
    "CNN": (CNN(channels=3, outputs=3, batch_norm=True, seed=0), {"x": images(3)}),
    "LSTM": (RNN(features=3, outputs=2, bidirectional=True, seed=0), {"x": sequences()}),
    "GRU": (RNN(features=3, outputs=2, cell="gru", layers=2, seed=0), {"x": sequences()}),
    "words": (
        RNN(features=3, outputs=2, vocabulary=9, seed=0),
        {"x": [random.integers(0, 9, 1 + n % 4) for n in range(20)]},
    ),
    "GCN": (
        GNN(features=3, outputs=2, batch_norm=True, seed=0),
        {"nodes": sequences(), "edges": EDGES},
    ),
    "SAGE": (
        GNN(features=3, outputs=2, kind="sage", readout="max", seed=0),
        {"nodes": sequences(), "edges": EDGES},
    ),
    "attention": (
        nn.Sequential(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            nn.Flatten(),
        ),
        {"x": random.normal(size=(20, 3, 8)).astype(np.float32)},
    ),
}


@pytest.mark.parametrize("precision", LOWER)
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_network(name: str, precision: str) -> None:
    network, data = CASES[name]
    exact = Predictor(network)(data).raw
    found = Predictor(network, precision=precision)(data).raw
    scale = np.abs(exact).max()
    assert np.abs(found - exact).max() < 0.1 * scale
    assert not np.array_equal(found, exact), "nothing was lowered"


@pytest.mark.parametrize("precision", LOWER)
@pytest.mark.parametrize("kind", [ResNet, MobileNetV2])
def test_networks_for_images(kind: Any, precision: str) -> None:
    torch.manual_seed(0)
    network = kind(outputs=4)
    pictures = {"x": [random.integers(0, 255, (32, 32, 3), np.uint8)] * 2}
    exact = Predictor(network)(pictures).raw
    found = Predictor(network, precision=precision)(pictures).raw
    np.testing.assert_allclose(found, exact, atol=0.1 * np.abs(exact).max())


@pytest.mark.parametrize("precision", LOWER)
def test_the_given_network_stays_as_it_is(precision: str) -> None:
    network = MLP([4, 8, 3], seed=0)
    before = copy.deepcopy(network.state_dict())
    Predictor(network, precision=precision)(np.ones((2, 4), np.float32))
    assert type(network.state_dict()) is type(before)
    for name, value in network.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])


def test_weights_take_less_room() -> None:
    network = nn.Sequential(nn.Linear(100, 100))
    [half, _] = lowered(network, "bfloat16").parameters()
    assert half.nbytes * 2 == network[0].weight.nbytes
    quantized = lowered(network, "int8")[0]  # type: ignore[index]
    assert quantized.weight().dtype == torch.qint8


class Weightless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("precision", LOWER)
def test_what_has_nothing_to_lower_is_told(precision: str) -> None:
    with pytest.raises(InputError, match=f'precision="{precision}" is for .* Weightless has none'):
        Predictor(Weightless(), precision=precision)


def test_convolutions_alone_have_nothing_for_int8() -> None:
    with pytest.raises(InputError, match='"int8" is for linear and recurrent layers'):
        lowered(nn.Conv2d(1, 1, 1), "int8")


@pytest.mark.parametrize("precision", ["float16", "", 8, "BFLOAT16"])
def test_unknown_precisions(precision: Any) -> None:
    with pytest.raises(InputError, match="precision must be 'bfloat16' or 'int8'"):
        Predictor(nn.Linear(2, 1), precision=precision)


def test_processes_that_end_badly_are_noticed() -> None:
    assert _survives("pass")
    assert not _survives("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
