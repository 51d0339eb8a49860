"""A linear regression as a graph: every node with its value and its gradient, by torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Node:
    """An input, or an operation and its result."""

    symbol: str
    operation: str
    """Empty for an input."""
    inputs: tuple[str, ...]
    formula: str
    """How its value is computed."""
    rule: str
    """How its gradient is, from the one that comes back: the chain rule."""
    value: Numbers
    gradient: Numbers


def regression_graph(
    x: Sequence[float], beta: Sequence[float], y: float, *, relu: bool = True
) -> dict[str, Node]:
    """Compute L = (ReLU(x·β) − y)² and the gradient of L at every node, by autograd.

    Args:
        x: one row of features.
        beta: a weight for each of them.
        y: what should come out.
        relu: whether there is a ReLU after the product.

    >>> graph = regression_graph([1, 2], [3, -0.5], 0.5)
    >>> graph["L"].value, graph["β"].gradient
    ((2.25,), (3.0, 6.0))
    """
    values = {
        name: torch.tensor(number, dtype=torch.float64, requires_grad=True)
        for name, number in (("x", list(x)), ("β", list(beta)), ("y", y))
    }
    values["z"] = values["x"] @ values["β"]
    before = "z"
    if relu:
        values["r"], before = torch.relu(values["z"]), "r"
    values["e"] = values[before] - values["y"]
    values["L"] = values["e"] ** 2
    for tensor in values.values():
        tensor.retain_grad()
    values["L"].backward()
    return {name: _node(name, before, values[name]) for name in values}


def _node(name: str, before: str, tensor: torch.Tensor) -> Node:
    gradient = tensor.grad
    assert gradient is not None  # all of them take part in L
    operation, inputs, formula, rule = _meaning(before)[name]
    numbers = (tuple(t.detach().reshape(-1).tolist()) for t in (tensor, gradient))
    return Node(name, operation, inputs, formula, rule, *numbers)


def _meaning(before: str) -> dict[str, tuple[str, tuple[str, ...], str, str]]:
    """Of each node: operation, inputs, formula, chain rule. `before` is what y is taken from."""
    return {
        "x": ("", (), "x is given", "∂L/∂x = ∂L/∂z · β"),
        "β": ("", (), "β is given", "∂L/∂β = ∂L/∂z · x"),
        "y": ("", (), "y is given", "∂L/∂y = −∂L/∂e"),
        "z": (
            "MatMul",
            ("x", "β"),
            "z = x · β",
            "∂L/∂z = ∂L/∂r where z > 0, else 0" if before == "r" else "∂L/∂z = ∂L/∂e",
        ),
        "r": ("ReLU", ("z",), "r = max(z, 0)", "∂L/∂r = ∂L/∂e"),
        "e": ("Subtract", (before, "y"), f"e = {before} − y", "∂L/∂e = 2e · ∂L/∂L"),
        "L": ("Square", ("e",), "L = e²", "∂L/∂L = 1"),
    }
