from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.utils import murmurhash3_32
from torch import nn

from farandole.errors import InputError
from farandole.networks import (
    INITIALIZATIONS,
    MLP,
    initialize,
    load_spark_weights,
    spark_weights,
    to_spark_weights,
)
from farandole.networks.spark_ml_weights import hashed, murmur, uniforms

IN, OUT = 300, 200
VARIANCES = {
    "glorot": 2 / (IN + OUT),
    "he": 2 / IN,
    "lecun": 1 / IN,
    "spark": 4.8**2 / 12 / IN,
    "torch": 1 / (3 * IN),
}


@pytest.mark.parametrize("name", VARIANCES)
def test_variances(name: str) -> None:
    layer = nn.Linear(IN, OUT)
    initialize(layer, name, seed=3)
    weight = layer.weight.detach()
    assert float(weight.var()) == pytest.approx(VARIANCES[name], rel=0.03)
    assert abs(float(weight.mean())) < 4 * (VARIANCES[name] / weight.numel()) ** 0.5
    assert (float(layer.bias.detach().abs().max()) > 0) == (name in ("spark", "torch"))


def test_every_way_is_tested() -> None:
    assert {*VARIANCES, "auto"} == set(INITIALIZATIONS)


def test_a_filter_counts_its_area() -> None:
    layer = nn.Conv2d(20, 30, 5)
    initialize(layer, "he", seed=3)
    assert float(layer.weight.detach().var()) == pytest.approx(2 / (20 * 25), rel=0.05)


@pytest.mark.parametrize(("activation", "expected"), [("relu", "he"), ("tanh", "glorot")])
def test_auto_is_what_suits_the_activation(activation: str, expected: str) -> None:
    automatic = MLP([8, 8, 2], activation=activation, seed=5).state_dict()
    explicit = MLP([8, 8, 2], activation, initialization=expected, seed=5).state_dict()
    assert all(torch.equal(automatic[name], explicit[name]) for name in explicit)


def test_a_signal_lives_through_thirty_layers_unless_torch_begins() -> None:
    inputs = torch.randn(200, 128, generator=torch.Generator().manual_seed(0))

    def loudness(initialization: str) -> float:
        net = MLP([128] * 32, "relu", initialization=initialization, seed=2)
        return float(net(inputs).detach().std(0).mean())

    assert 0.1 < loudness("auto") < 10
    assert loudness("torch") < 1e-3


def test_a_seed_gives_the_same_weights_and_leaves_torch_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, other = MLP([4, 5, 3], seed=1), MLP([4, 5, 3], seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.last.weight, other.last.weight)
    assert not torch.equal(one.last.weight, MLP([4, 5, 3], seed=2).last.weight)


@pytest.mark.parametrize("seed", [0, 1, -1, 42, 2**40 + 5, -(2**63), 2**63 - 1])
def test_seeds_are_hashed_by_murmur(seed: int) -> None:
    data = seed.to_bytes(8, "big", signed=True)
    low = int(murmurhash3_32(data, 0x3C074A61, positive=True))
    high = int(murmurhash3_32(data, low, positive=True))
    assert murmur(data, 0x3C074A61) == low
    assert hashed(seed) == high << 32 | low


def one_after_another(seed: int, count: int) -> list[float]:
    """java.util.Random.nextDouble over a xorshift, a bit at a time."""
    state, found = hashed(seed), []
    for _ in range(count):
        parts = []
        for bits in (26, 27):
            state ^= state << 21 & (2**64 - 1)
            state ^= state >> 35
            state ^= state << 4 & (2**64 - 1)
            parts.append(state & (2**bits - 1))
        found.append(((parts[0] << 27) + parts[1]) * 2.0**-53)
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000, 4097])
def test_lanes_are_one_stream(count: int) -> None:
    assert uniforms(-5, count).tolist() == one_after_another(-5, count)


def test_spark_order() -> None:
    mlp = MLP([3, 2, 4], "sigmoid", initialization="spark", seed=9).double()
    flat = spark_weights([3, 2, 4], seed=9)
    np.testing.assert_allclose(to_spark_weights(mlp), flat, rtol=1e-7)
    load_spark_weights(mlp, flat)
    assert np.array_equal(to_spark_weights(mlp), flat)
    first, bias = flat[:6].reshape(2, 3, order="F"), flat[6:8]
    rows = np.random.default_rng(0).normal(size=(5, 3))
    hidden = 1 / (1 + np.exp(-(rows @ first.T + bias)))
    outputs = hidden @ flat[8:16].reshape(4, 2, order="F").T + flat[16:]
    np.testing.assert_allclose(mlp(torch.tensor(rows)).detach(), outputs, rtol=1e-12)


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"initialization='hee'. Did you mean 'he'"):
        MLP([2, 2], initialization="hee")
    with pytest.raises(InputError, match="linear layers with a bias only"):
        initialize(nn.Conv2d(1, 1, 3), "spark")
    with pytest.raises(
        InputError, match=r"signed 64-bit number. Received: seed=18446744073709551616"
    ):
        spark_weights([2, 2], 2**64)
    with pytest.raises(InputError, match=r"layers=\[2, 2\] have 6 weights. Received: 5"):
        load_spark_weights(MLP([2, 2]), [0.0] * 5)
    with pytest.raises(InputError, match="neither batch_norm nor residual"):
        to_spark_weights(MLP([2, 2, 2], residual=True))
