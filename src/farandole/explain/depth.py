"""explain depth: why gradients vanish and explode in deep networks, and what helps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from farandole.explain import figure as figures
from farandole.explain.depth_study import FULL, DepthPlan, study_depth
from farandole.explain.depth_variants import EXPLODING, VANISHING, VARIANTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def explain_depth(path: Path, plan: DepthPlan = FULL) -> None:
    """Train shallow and deep networks, print what became of them, and draw their gradients.

    Args:
        path: where the picture goes.
        plan: how much to measure.
    """
    from rich.console import Console

    figures.new_figure(1, 1)  # without matplotlib, say so now and not in a minute
    console = Console()
    study = study_depth(plan, tell=console.print)
    draw_picture(study.gradients, study.summary, path)
    console.print(_as_text(study.summary))
    for name, variant in VARIANTS.items():
        console.print(f"[bold]{name}[/bold]: {variant.shows}")


def _as_text(summary: pd.DataFrame) -> Any:
    from rich.table import Table

    text = Table(title="Gradients of the first step, and what a few epochs of training reach")
    text.add_column("variant", no_wrap=True)
    for name in ("hidden layers", "first layer", "last layer", "first / last", "loss", "accuracy"):
        text.add_column(name, justify="right")
    name = ""
    for row in summary.to_dict("records"):
        if row["variant"] != name:
            text.add_section()
        lost = math.isnan(row["loss"])
        text.add_row(
            "" if row["variant"] == name else row["variant"],
            str(row["depth"]),
            *(f"{row[norm]:.0e}" for norm in ("first", "last", "ratio")),
            *(("NaN", "–") if lost else (f"{row['loss']:.3g}", f"{row['accuracy']:.2f}")),
        )
        name = row["variant"]
    return text


def draw_picture(gradients: pd.DataFrame, summary: pd.DataFrame, path: Path) -> None:
    """Draw the gradient's norm by layer for each variant, and the accuracies as a table.

    Args:
        gradients: one row a layer, as `DepthStudy` has them.
        summary: one row a network.
        path: where the picture goes.
    """
    figure = figures.new_figure(15, 8.6)
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
    figures.save(figure, path)


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
    figures.tidy(axes)
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
