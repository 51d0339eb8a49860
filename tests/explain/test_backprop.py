from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.errors import InputError
from farandole.explain import explain
from farandole.explain.backprop import regression_graph

X, BETA, Y = np.array([1.0, -2.0, 0.5]), np.array([3.0, 0.25, -1.0]), 0.75


def loss(x: np.ndarray, beta: np.ndarray, y: float, relu: bool) -> float:
    z = x @ beta
    return float(((max(z, 0.0) if relu else z) - y) ** 2)


def slope(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Differences on both sides, for each number."""
    h = 1e-6 * np.eye(at.size)
    return np.array([(function(at + step) - function(at - step)) / 2e-6 for step in h])


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("sign", [1, -1])  # with −1 the ReLU is closed
def test_gradients_are_slopes(relu: bool, sign: int) -> None:
    beta = sign * BETA
    graph = regression_graph(X.tolist(), beta.tolist(), Y, relu=relu)
    assert graph["L"].value == (pytest.approx(loss(X, beta, Y, relu)),)
    for name, wanted in {
        "x": slope(lambda x: loss(x, beta, Y, relu), X),
        "β": slope(lambda b: loss(X, b, Y, relu), beta),
        "y": slope(lambda y: loss(X, beta, float(y[0]), relu), np.array([Y])),
    }.items():
        np.testing.assert_allclose(graph[name].gradient, wanted, atol=1e-7, err_msg=name)
    assert ("r" in graph) == relu


def test_every_node_names_what_it_takes() -> None:
    graph = regression_graph([1], [2], 3, relu=False)
    assert graph["e"].inputs == ("z", "y")
    assert all(source in graph for node in graph.values() for source in node.inputs)
    assert graph["e"].value == (-1.0,)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"x": "1,two"}, "x must be made of numbers. Received: 'two'"),
        ({"x": "1,2,3"}, "same length. Received: 3 and 2"),
        ({"x": "1,2,3,4,5", "beta": "1,2,3,4,5"}, "1 to 4 numbers"),
        ({"x": "nan,1"}, "x must be made of finite numbers. Received: 'nan'"),
        ({"beta": "1,-inf"}, "beta must be made of finite numbers. Received: '-inf'"),
        ({"y": float("inf")}, "y must be made of finite numbers. Received: inf"),
        (
            {"x": "1e200,1", "beta": "1e100,1"},
            "L or a gradient is too large. Received: x='1e200,1'",
        ),
        ({"y": "high"}, "y must be made of numbers"),
    ],
)
def test_what_is_no_number_is_named(
    options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=complaint):
        explain("backprop", tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_caption_keeps_the_rule_and_the_number_apart(tmp_path: Path) -> None:
    page = explain("backprop", tmp_path, x="1,2", beta="3,-0.5", y=0.5).read_text()
    assert "∂L/∂z = ∂L/∂r where z &gt; 0, else 0; here 3<" in page
    assert "MatMul: z = x · β; here 2<" in page
