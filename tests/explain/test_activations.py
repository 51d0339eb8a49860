from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farandole.explain import activation_curves, activation_table, explain_activations
from farandole.networks import ACTIVATIONS

Numbers = np.ndarray


def sigmoid(a: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-a))


# As the course writes them, by NumPy.
BY_HAND: dict[str, Callable[[Numbers], Numbers]] = {
    "identity": lambda a: a,
    "sigmoid": sigmoid,
    "tanh": lambda a: 2 * sigmoid(2 * a) - 1,
    "softplus": lambda a: np.log(1 + np.exp(a)),
    "relu": lambda a: np.maximum(a, 0),
    "leaky_relu": lambda a: np.maximum(a, 0) + 0.01 * np.minimum(a, 0),
    "elu": lambda a: np.maximum(a, 0) + np.minimum(np.exp(a) - 1, 0),
    "swish": lambda a: a * sigmoid(a),
    "gelu": lambda a: a * np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2)(a),
}


@pytest.fixture(scope="module")
def curves() -> pd.DataFrame:
    return activation_curves(-4, 4, points=80)  # an even number, so that 0 is not among them


def test_every_activation_is_shown(curves: pd.DataFrame) -> None:
    assert list(curves["activation"].unique()) == list(ACTIVATIONS) == list(BY_HAND)


@pytest.mark.parametrize("name", BY_HAND)
def test_values_and_slopes_are_those_of_numpy(name: str, curves: pd.DataFrame) -> None:
    curve = curves[curves["activation"] == name]
    a, function, h = curve["a"].to_numpy(), BY_HAND[name], 1e-6
    np.testing.assert_allclose(curve["value"], function(a), atol=1e-12)
    differences = (function(a + h) - function(a - h)) / (2 * h)
    np.testing.assert_allclose(curve["slope"], differences, atol=1e-8)


def test_the_table_says_how_steep_they_are() -> None:
    table = activation_table().set_index("activation")
    assert table["slope_at_0"].to_dict() == {
        "identity": 1, "sigmoid": 0.25, "tanh": 1, "softplus": 0.5, "relu": 0, "leaky_relu": 0.01,
        "elu": 1, "swish": 0.5, "gelu": 0.5,
    }  # fmt: skip
    fine = np.linspace(-20, 20, 400_001)
    for name in ("swish", "gelu"):  # the two that are steeper than 1 somewhere
        steepest = np.gradient(BY_HAND[name](fine), fine).max()
        assert table.loc[name, "largest_slope"] == pytest.approx(steepest, abs=1e-5)
    assert table["through_20_layers"].idxmin() == "sigmoid"
    assert table.loc["sigmoid", "through_20_layers"] == 0.25**20


@pytest.mark.parametrize("name", ["swish", "gelu"])
def test_a_stated_range_begins_at_the_least_value(name: str) -> None:
    least = activation_curves(points=8001).groupby("activation")["value"].min()[name]
    assert ACTIVATIONS[name].range == f"[−{-least:.2f}, ∞)"


def test_the_picture_is_drawn_and_the_table_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    explain_activations(tmp_path / "new" / "picture.png")
    assert (tmp_path / "new" / "picture.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(f"│ {name} " in printed for name in ACTIVATIONS)
    assert "9.09e-13" in printed
