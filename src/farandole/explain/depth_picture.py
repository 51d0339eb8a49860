"""The picture of explain depth: a panel a variant, a line a depth, and what was learned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from farandole.explain import picture
from farandole.explain.variants import EXPLODING, VANISHING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(gradients: pd.DataFrame, summary: pd.DataFrame, path: Path) -> None:
    """Draw the gradient's norm by layer for each variant, and the accuracies as a table.

    Args:
        gradients: one row a layer, as `DepthStudy` has them.
        summary: one row a network.
        path: where the picture goes.
    """
    figure = picture.new_figure(15, 8.2)
    upper, lower = figure.subplots(2, 4, gridspec_kw={"wspace": 0.04, "hspace": 0.06})
    families = ((upper, VANISHING, "vanishing"), (lower[:3], EXPLODING, "exploding"))
    for row, variants, _ in families:
        chosen = gradients[gradients["variant"].isin(list(variants))]
        limits = (chosen["norm"].min() / 10, chosen["norm"].max() * 10)
        for axes, name in zip(row, variants, strict=True):
            _lines(axes, chosen[chosen["variant"] == name], limits)
            axes.set_title(name, fontsize=12, fontweight="bold")
            axes.tick_params(labelleft=axes is row[0])
        row[0].set_ylabel("norm of the gradient, first step")
    _accuracies(lower[3], summary)
    handles, labels = upper[0].get_legend_handles_labels()
    figure.legend(handles, labels, title="hidden layers", loc="outside right upper", frameon=False)
    figure.suptitle(
        "Gradients vanish (above) and explode (below) with depth, and what keeps them alive",
        x=0.01, ha="left", fontsize=15, fontweight="bold",
    )  # fmt: skip
    picture.save(figure, path)


def _lines(axes: Axes, gradients: pd.DataFrame, limits: tuple[float, float]) -> None:
    from matplotlib import colormaps

    depths = sorted(gradients["depth"].unique())
    for number, depth in enumerate(depths):
        one = gradients[gradients["depth"] == depth]
        colour = colormaps["viridis"](0.9 * (1 - number / max(1, len(depths) - 1)))
        place = (one["layer"] - 1) / depth  # 0 is the first layer, 1 the last
        axes.plot(place, one["norm"], ".-", color=colour, markersize=4, label=str(depth))
    picture.tidy(axes)
    axes.set_yscale("log")
    axes.set(ylim=limits, xticks=[0, 0.5, 1], xticklabels=["first\nlayer", "", "last\nlayer"])


def _accuracies(axes: Axes, summary: pd.DataFrame) -> None:
    """Draw a table whose cells are the darker, the less was learned."""
    names = [*VANISHING, *EXPLODING]
    table = summary.pivot(index="variant", columns="depth", values="accuracy").loc[names]
    axes.imshow(table.fillna(0.0), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for row, name in enumerate(names):
        for column, depth in enumerate(table.columns):
            value = float(table.loc[name, depth])
            text = "NaN" if math.isnan(value) else f"{value:.2f}"
            colour = "black" if value > 0.5 else "white"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=10)
    axes.axhline(len(VANISHING) - 0.5, color="white", linewidth=4)
    axes.set_title("accuracy after training", fontsize=12, fontweight="bold")
    axes.set_xticks(range(table.shape[1]), [str(depth) for depth in table.columns])
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("hidden layers")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
