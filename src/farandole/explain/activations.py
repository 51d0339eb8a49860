"""explain activations: nine functions, their slopes, and what that means for depth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from farandole.errors import MissingPackage
from farandole.explain import picture
from farandole.explain.activations_page import activation_frames
from farandole.explain.page import write_page
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
        draw(curves, path)
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


def draw(curves: pd.DataFrame, path: Path) -> None:
    """Draw every activation with its slope, all on the same scale."""
    names = list(curves["activation"].unique())
    figure = picture.new_figure(10.5, 9)
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
    picture.save(figure, path)


def _panel(axes: Axes, name: str, curve: pd.DataFrame) -> None:
    a, slope = curve["a"].to_numpy(), curve["slope"].to_numpy().copy()
    slope[1:][np.abs(np.diff(slope)) > _KINK] = np.nan  # a jump is a gap, not a wall
    picture.tidy(axes)
    axes.plot(a, curve["value"], color=picture.BLUE, linewidth=2.2, label="f(a)")
    axes.plot(a, slope, "--", color=picture.VERMILION, linewidth=2, label="f′(a)")
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
