from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farandole.errors import InputError
from farandole.networks import ACTIVATIONS, activation

A = np.linspace(-4, 4, 33)[np.linspace(-4, 4, 33) != 0]  # no derivative of ReLU at 0


def sigma(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def phi(a: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in a])


ALPHA = 0.3
# name, options, the definition, its derivative
DEFINITIONS: list[tuple[str, dict[str, Any], Callable[..., Any], Callable[..., Any]]] = [
    ("identity", {}, lambda a: a, lambda a: np.ones_like(a)),
    ("sigmoid", {}, sigma, lambda a: sigma(a) * (1 - sigma(a))),
    ("tanh", {}, lambda a: 2 * sigma(2 * a) - 1, lambda a: 1 - np.tanh(a) ** 2),
    ("softplus", {}, lambda a: np.log(1 + np.exp(a)), sigma),
    ("relu", {}, lambda a: np.maximum(a, 0), lambda a: a > 0),
    (
        "leaky_relu",
        {"alpha": ALPHA},
        lambda a: np.maximum(a, 0) + ALPHA * np.minimum(a, 0),
        lambda a: np.where(a > 0, 1, ALPHA),
    ),
    (
        "elu",
        {"alpha": ALPHA},
        lambda a: np.maximum(a, 0) + np.minimum(ALPHA * (np.exp(a) - 1), 0),
        lambda a: np.where(a > 0, 1, ALPHA * np.exp(a)),
    ),
    ("swish", {}, lambda a: a * sigma(a), lambda a: sigma(a) * (1 + a * (1 - sigma(a)))),
    (
        "gelu",
        {},
        lambda a: a * phi(a),
        lambda a: phi(a) + a * np.exp(-(a**2) / 2) / np.sqrt(2 * np.pi),
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "value", "derivative"), DEFINITIONS, ids=[d[0] for d in DEFINITIONS]
)
def test_values_and_derivatives(
    name: str, options: dict[str, Any], value: Callable[..., Any], derivative: Callable[..., Any]
) -> None:
    inputs = torch.tensor(A, requires_grad=True)
    outputs = activation(name, **options)(inputs)
    outputs.sum().backward()
    np.testing.assert_allclose(outputs.detach(), value(A), rtol=1e-12, atol=1e-12)
    assert inputs.grad is not None
    np.testing.assert_allclose(inputs.grad, derivative(A), rtol=1e-12, atol=1e-12)


def test_every_activation_is_tested() -> None:
    assert [name for name, *_ in DEFINITIONS] == list(ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_range_in_the_table(name: str) -> None:
    outputs = activation(name)(torch.linspace(-60, 60, 200001, dtype=torch.float64))
    text = ACTIVATIONS[name].range.replace("−α", "−1").replace("−", "-")
    if text == "ℝ":
        assert outputs.min() < -0.5 < 50 < outputs.max()
        return
    low, high = text.strip("[])").split(", ")
    assert float(outputs.min()) == pytest.approx(float(low), abs=0.005)
    assert float(outputs.max()) == pytest.approx(60 if high == "∞" else float(high), abs=0.005)


def test_outputs_over_classes() -> None:
    rows = torch.randn(2, 3, 4)
    torch.testing.assert_close(activation("softmax")(rows).sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(activation("log_softmax")(rows), rows.log_softmax(-1))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SiLU", nn.SiLU),
        ("leakyrelu", nn.LeakyReLU),
        ("Leaky-ReLU", nn.LeakyReLU),
        ("TANH", nn.Tanh),
    ],
)
def test_other_spellings(name: str, kind: type[nn.Module]) -> None:
    assert type(activation(name)) is kind


def test_modules_and_classes_pass_through() -> None:
    mine = nn.Hardtanh(-2, 2)
    assert activation(mine) is mine
    assert repr(activation(nn.CELU, alpha=0.5)) == "CELU(alpha=0.5)"


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("sigmoyd", {}, "no activation 'sigmoyd'. Did you mean 'sigmoid'"),
        ("x", {}, "There are identity, sigmoid"),
        (3, {}, "a name or a module of torch. Received: 3"),
        (nn.ReLU(), {"alpha": 1}, "made already"),
        ("elu", {"slope": 1}, "Its options: alpha, inplace"),
    ],
)
def test_what_is_no_activation(name: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        activation(name, **options)
