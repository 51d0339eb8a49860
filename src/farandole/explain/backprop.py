"""explain backprop: values go forward through a graph, gradients come back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from farandole.errors import InputError
from farandole.explain import terminal
from farandole.explain.drawing import (
    BLUE,
    GREY,
    PALE_BLUE,
    PALE_ORANGE,
    VERMILION,
    WHITE,
    Drawing,
    length,
)
from farandole.explain.page import Frame, write_page

_MOST = 4  # features that fit into a box
_PLACES = {
    "x": (0, 0), "β": (0, 2), "z": (1, 1), "r": (2, 1), "e": (3, 1), "y": (3, 2.75), "L": (4, 1),
}  # fmt: skip
_BOX = (250.0, 70.0)  # of a value, and of the gradient under it
_LONGEST = 20.0  # of what is written there on two lines, in heights of a letter
_ENDS = {"x": (20.0, 54.0), "β": (86.0, 120.0)}  # at MatMul, where four arrows meet
_FAINT = "#DDDDDD"


def explain_backprop(
    path: Path,
    *,
    x: str | Sequence[float] = (1.0, 2.0),
    beta: str | Sequence[float] = (3.0, -0.5),
    y: float = 0.5,
    relu: bool = True,
) -> None:
    """Print the graph of a linear regression with values and gradients, and write a page of it.

    Args:
        path: where the page goes.
        x: a row of features, or numbers between commas.
        beta: a weight for each.
        y: what should come out.
        relu: whether there is a ReLU after the product.
    """
    features, weights = _numbers("x", x), _numbers("beta", beta)
    if len(features) != len(weights):
        raise InputError(
            f"x and beta must have the same length. Received: {len(features)} and {len(weights)}"
        )
    graph = regression_graph(features, weights, _number("y", y), relu=relu)
    if not all(math.isfinite(n) for node in graph.values() for n in node.value + node.gradient):
        raise InputError(
            f"With these numbers L or a gradient is too large. Received: x={x!r}, beta={beta!r}, "
            f"y={y!r}. Choose smaller ones."
        )
    write_page(path, "Backpropagation: a linear regression as a graph", _frames(graph), seconds=3)
    console = terminal.console()
    rows = [
        [node.symbol, node.operation or "input", _text(node.value), _text(node.gradient)]
        for node in graph.values()
    ]
    columns = ["", " operation", "  value", "  gradient ∂L/∂·"]
    console.print(terminal.plain_table(columns, rows))
    console.print("\nForward: " + ";  ".join(graph[name].formula for name in _forward(graph)))
    console.print("Backward: " + ";  ".join(graph[n].rule for group in _back(graph) for n in group))


def _numbers(name: str, given: str | Sequence[float]) -> list[float]:
    parts = given.split(",") if isinstance(given, str) else list(given)
    numbers = [_number(name, part) for part in parts]
    if not 1 <= len(numbers) <= _MOST:
        raise InputError(f"{name} must have 1 to {_MOST} numbers. Received: {name}={given!r}")
    return numbers


def _number(name: str, given: str | float) -> float:
    try:
        number = float(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be made of numbers. Received: {given!r}") from error
    if not math.isfinite(number):
        raise InputError(f"{name} must be made of finite numbers. Received: {given!r}")
    return number


def _text(numbers: Numbers) -> str:
    """Numbers in words, with as many digits as there is room for in a box."""
    choices = [_rounded(numbers, digits) for digits in (4, 3, 2, 1)]
    return next((words for words in choices if length(words) < _LONGEST), choices[-1])


def _rounded(numbers: Numbers, digits: int) -> str:
    # −0.0 is 0 to a reader, and 1e+50 is 1e50.
    written = [f"{number + 0.0:.{digits}g}".replace("e+", "e") for number in numbers]
    words = ", ".join(written).replace("-", "−")
    return words if len(numbers) == 1 else f"[{words}]"


def _forward(graph: dict[str, Node]) -> list[str]:
    return [name for name, node in graph.items() if node.operation]


def _back(graph: dict[str, Node]) -> list[tuple[str, ...]]:
    """Who gets a gradient at the same time, from L on."""
    order = _forward(graph)[::-1]
    return [("L",), *(graph[name].inputs for name in order)]


def _frames(graph: dict[str, Node]) -> list[Frame]:
    order, back = _forward(graph), _back(graph)
    known = {name for name, node in graph.items() if not node.operation}
    frames = [_frame(graph, "Start", "x and y are given, β is to be learned.", known, set(), set())]
    for number, name in enumerate(order, 1):
        known = known | {name}
        node = graph[name]
        caption = f"{node.operation}: {node.formula}; here {_text(node.value)}"
        phase = f"Forward, step {number} of {len(order)}"
        frames.append(_frame(graph, phase, caption, known, set(), {name}))
    told: set[str] = set()
    for number, names in enumerate(back, 1):
        told = told | set(names)
        caption = ". ".join(_rule(graph[name]) for name in names)
        phase = f"Backward, step {number} of {len(back)}"
        frames.append(_frame(graph, phase, caption, known, told, set(names)))
    return frames


def _rule(node: Node) -> str:
    """How its gradient is computed, and what comes out."""
    return node.rule if node.symbol == "L" else f"{node.rule}; here {_text(node.gradient)}"


def _frame(
    graph: dict[str, Node], phase: str, caption: str, known: set[str], told: set[str], new: set[str]
) -> Frame:
    """Draw the nodes whose value is known and whose gradient is told; `new` ones stand out."""
    drawing = Drawing(1600, 640, phase)
    for node in graph.values():
        for source in node.inputs:
            _draw_edge(drawing, graph, source, node.symbol, node.symbol in known, source in told)
    for node in graph.values():
        x, y = _place(graph, node.symbol)
        title = f"{node.symbol}: {node.operation}" if node.operation else node.symbol
        drawing.text(x + _BOX[0] / 2, y - 12, title, size=32, bold=True)
        name, back = node.symbol, node.symbol in told
        value = _text(node.value) if name in known else ""
        gradient = f"∂ {_text(node.gradient)}" if back else ""
        fresh = (name in new and not back, name in new and back)
        _draw_half(drawing, x, y, value, f"{name}, value", fresh[0], BLUE)
        _draw_half(drawing, x, y + _BOX[1], gradient, f"{name}, gradient", fresh[1], VERMILION)
    drawing.text(5, 628, "above: the value; below, with ∂: its gradient", size=26, anchor="start")
    return Frame(phase, drawing, caption)


def _draw_half(
    drawing: Drawing, x: float, y: float, words: str, name: str, fresh: bool, colour: str
) -> None:
    pale = PALE_BLUE if colour == BLUE else PALE_ORANGE
    drawing.box(
        x, y, *_BOX, words, fill=pale if words else WHITE, edge=colour if words else GREY,
        thick=6 if fresh else 2, dashed=not words, size=34, bold=fresh, name=name,
    )  # fmt: skip


def _place(graph: dict[str, Node], name: str) -> tuple[float, float]:
    column, row = _PLACES[name]
    if "r" not in graph and column > 1:
        column -= 1
    gap = (1590 - _BOX[0]) / (4 if "r" in graph else 3)
    return 5 + column * gap, 50 + row * 142


def _draw_edge(
    drawing: Drawing, graph: dict[str, Node], source: str, target: str, used: bool, back: bool
) -> None:
    """Two arrows: the value there, the gradient back. They are faint until something moves."""
    (x, y), (to_x, to_y) = _place(graph, source), _place(graph, target)
    width, height = _BOX
    forward, backward = _ENDS.get(source, (height - 24, height + 24))
    starts = [(x + width + 4, y + height - 24), (to_x - 4, to_y + forward)]
    ends = [(to_x - 4, to_y + backward), (x + width + 4, y + height + 24)]
    if x == to_x:  # from below
        below, above = y - 46, to_y + 2 * height + 4
        starts = [(x + 60, below), (x + 60, above)]
        ends = [(x + width - 60, above), (x + width - 60, below)]
    drawing.arrow(*starts, colour=BLUE if used else _FAINT)
    drawing.arrow(*ends, colour=VERMILION if back else _FAINT)


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
