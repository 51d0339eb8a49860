"""The picture of explain depth: a panel a variant, a line a depth, and what was learned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    figure = picture.new_figure(15, 8.6)
    figure.suptitle(
        "Gradients vanish or explode with depth, unless something keeps their size",
        x=0.01, ha="left", fontsize=16, fontweight="bold",
    )  # fmt: skip
    parts: Any = figure.subfigures(2, 1, hspace=0.03)
    upper, lower = parts
    vanishing, exploding = upper.subplots(1, 4), lower.subplots(1, 4, width_ratios=[1, 1, 1, 1.1])
    _family(vanishing, VANISHING, gradients)
    _family(exploding[:3], EXPLODING, gradients)
    _accuracies(exploding[3], summary)
    # Where gradients keep their size, the lower part of a panel is free.
    vanishing[1].legend(title="hidden layers", loc="lower center", ncols=2, frameon=False)
    for part, begins in ((upper, "Vanishing: sigmoid, small weights"),
                         (lower, "Exploding: ReLU, large weights")):  # fmt: skip
        words = f"{begins}. The panels beside it change one thing each."
        part.suptitle(words, x=0.01, ha="left", fontsize=12.5, color="#444444")
    picture.save(figure, path)


def _family(row: Sequence[Axes], names: Iterable[str], gradients: pd.DataFrame) -> None:
    """Draw variants beside each other, on one scale."""
    chosen = gradients[gradients["variant"].isin(list(names))]
    limits = (chosen["norm"].min() / 10, chosen["norm"].max() * 10)
    for axes, name in zip(row, names, strict=True):
        _lines(axes, chosen[chosen["variant"] == name], limits)
        axes.set_title(name, fontsize=12, fontweight="bold")
        axes.tick_params(labelleft=axes is row[0])
    row[0].set_ylabel("norm of the gradient, first step")


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
    axes.imshow(table.fillna(0.0).to_numpy(), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for row, values in enumerate(table.to_numpy(dtype=float)):
        for column, value in enumerate(values):
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
