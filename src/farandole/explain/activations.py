"""explain activations: nine functions, their slopes, and what that means for depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from farandole.errors import MissingPackage
from farandole.explain import figure as figures
from farandole.explain.drawing import BLUE, VERMILION, Chart, Drawing, Point
from farandole.explain.page import Frame, write_page
from farandole.networks import ACTIVATIONS, activation

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LAYERS = 20
_KINK = 0.5  # a slope that changes by more from one point to the next has jumped


def explain_activations(path: Path) -> None:
    """Print the table of activations, write a page of them, and draw them all on one picture.

    Args:
        path: where the page goes (.html); the picture is beside it (.png), if there is matplotlib.
    """
    from rich.console import Console

    curves, table = activation_curves(), activation_table()
    frames = list(activation_frames(curves, table))
    write_page(path.with_suffix(".html"), "Activations and their slopes", frames, seconds=4)
    console = Console()
    console.print(_as_text(table))
    console.print(
        "Slopes are torch's own, by automatic differentiation; where there is a corner, the left "
        f"one. Going back through {_LAYERS} layers multiplies {_LAYERS} of them, and the weights "
        "between: the last column is the most that they leave of a gradient."
    )
    console.print(_draw_or_say_why(curves, path.with_suffix(".png")), soft_wrap=True, markup=False)


def _draw_or_say_why(curves: pd.DataFrame, path: Path) -> str:
    """The page needs no matplotlib, so it is no error to have none."""
    try:
        draw_picture(curves, path)
    except MissingPackage as error:
        return f"There is no picture of all nine, only the page. {error}"
    return f"The picture: {path}"


def activation_curves(least: float = -4.0, most: float = 4.0, points: int = 401) -> pd.DataFrame:
    """Compute each activation and its slope over a range of numbers, in double precision.

    Args:
        least: where to begin.
        most: where to end.
        points: how many numbers, evenly spaced.

    >>> curves = activation_curves(-1, 1, points=3).set_index(["activation", "a"])
    >>> curves.loc[("sigmoid", 0.0)].tolist()
    [0.5, 0.25]
    """
    a = torch.linspace(least, most, points, dtype=torch.float64, requires_grad=True)
    parts = []
    for name in ACTIVATIONS:
        value = activation(name)(a)
        (slope,) = torch.autograd.grad(value.sum(), a)
        columns = {"a": a, "value": value, "slope": slope}
        numbers = {column: tensor.detach().numpy() for column, tensor in columns.items()}
        parts.append(pd.DataFrame({"activation": name, **numbers}))
    return pd.concat(parts, ignore_index=True)


def activation_table() -> pd.DataFrame:
    """Say of each activation what it computes, where its values lie, and how steep it is.

    >>> table = activation_table().set_index("activation")
    >>> table.loc["sigmoid", "range"], float(table.loc["sigmoid", "largest_slope"])
    ('[0, 1]', 0.25)
    """
    curves = activation_curves(-20.0, 20.0, points=4001)
    largest = curves.groupby("activation")["slope"].max()
    at_zero = activation_curves(0.0, 0.0, points=1).set_index("activation")["slope"]
    rows = [
        {
            "activation": name,
            "formula": entry.formula,
            "range": entry.range,
            "slope_at_0": at_zero[name],
            "largest_slope": largest[name],
            "through_20_layers": largest[name] ** _LAYERS,
        }
        for name, entry in ACTIVATIONS.items()
    ]
    return pd.DataFrame(rows)


def draw_picture(curves: pd.DataFrame, path: Path) -> None:
    """Draw every activation with its slope, all on the same scale."""
    names = list(curves["activation"].unique())
    figure = figures.new_figure(10.5, 9)
    grid = figure.subplots(-(-len(names) // 3), 3, sharex=True, sharey=True)
    for axes, name in zip(grid.flat, names, strict=False):
        _panel(axes, name, curves[curves["activation"] == name])
    for axes in grid[-1]:
        axes.set_xlabel("a")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=12)
    figure.suptitle(
        "Activations and their slopes: the sigmoid's is never above ¼",
        x=0.01, ha="left", fontsize=14, fontweight="bold",
    )  # fmt: skip
    figures.save(figure, path)


def _panel(axes: Axes, name: str, curve: pd.DataFrame) -> None:
    a, slope = curve["a"].to_numpy(), curve["slope"].to_numpy().copy()
    slope[1:][np.abs(np.diff(slope)) > _KINK] = np.nan  # a jump is a gap, not a wall
    figures.tidy(axes)
    axes.plot(a, curve["value"], color=figures.BLUE, linewidth=2.2, label="f(a)")
    axes.plot(a, slope, "--", color=figures.VERMILION, linewidth=2, label="f′(a)")
    axes.set_title(f"{name}:  {ACTIVATIONS[name].formula}", fontsize=11)
    axes.set(xlim=(a[0], a[-1]), ylim=(-1.25, 3.25))


def _as_text(table: pd.DataFrame) -> Any:
    from rich.table import Table

    text = Table(title="Activations")
    for name in ("activation", "formula", "range"):
        text.add_column(name, no_wrap=name != "formula")
    for name in ("slope at 0", "largest slope", f"{_LAYERS} layers"):
        text.add_column(name, justify="right", min_width=8)
    for row in table.to_dict("records"):
        text.add_row(
            *(row[name] for name in ("activation", "formula", "range")),
            *(f"{row[name]:.3g}" for name in ("slope_at_0", "largest_slope", "through_20_layers")),
        )
    return text


def activation_frames(curves: pd.DataFrame, table: pd.DataFrame) -> Iterator[Frame]:
    """Draw each activation.

    Args:
        curves: what `activation_curves` gives.
        table: what `activation_table` gives.
    """
    for row in table.to_dict("records"):
        name = row["activation"]
        curve = curves[curves["activation"] == name]
        caption = (
            f"f(a) = {row['formula']}, values in {row['range']}. Its slope is "
            f"{row['slope_at_0']:.3g} at 0 and {row['largest_slope']:.3g} at most: going back "
            f"through 20 layers leaves {row['through_20_layers']:.2g} of a gradient, at best."
        )
        yield Frame(name, _page_drawing(name, curve), caption)


def _page_drawing(name: str, curve: pd.DataFrame) -> Drawing:
    drawing = Drawing(1600, 640, f"{name} and its slope")
    chart = Chart(drawing, (120, 1560), (590, 20), (-4, 4), (-1.25, 3.25))
    chart.axes([(a, _number(a)) for a in range(-4, 5)], [(y, _number(y)) for y in range(-1, 4)])
    chart.curve([(0, -1.25), (0, 3.25)], "#AAAAAA", thick=2)
    chart.curve([(-4, 0), (4, 0)], "#AAAAAA", thick=2)
    chart.curve(_points(curve, "value"), BLUE, thick=8)
    for piece in _pieces(_points(curve, "slope")):
        chart.curve(piece, VERMILION, thick=6, dashed=True)
    for y, words, colour in ((2.9, "f(a)", BLUE), (2.5, "slope f′(a), dashed", VERMILION)):
        chart.note(-3.8, y, words, colour, anchor="start")
    return drawing


def _number(number: int) -> str:
    return str(number).replace("-", "−")


def _points(curve: pd.DataFrame, column: str) -> list[Point]:
    """Every other point is enough for a line; those beyond the chart are left out."""
    pairs = zip(curve["a"].tolist(), curve[column].tolist(), strict=True)
    return [(a, value) for a, value in list(pairs)[::2] if -1.25 <= value <= 3.25]


def _pieces(points: Sequence[Point]) -> list[list[Point]]:
    """Cut a line where it jumps: a jump is a gap, not a wall."""
    pieces = [[points[0]]]
    for before, point in pairwise(points):
        if abs(point[1] - before[1]) > _KINK:
            pieces.append([])
        pieces[-1].append(point)
    return pieces
