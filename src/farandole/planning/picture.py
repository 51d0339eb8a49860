"""The picture of a plan: efficiency, memory and bytes over workers, a line a strategy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from farandole.errors import MissingPackage
from farandole.planning.strategies import INEXACT, STRATEGIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from farandole.planning.plan import Plan

# Told apart by all eyes (Okabe and Ito); dashes tell the families of strategies.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#9A9A9A")
_PANELS = (
    ("efficiency", "scaling efficiency", 1.0),
    ("seconds", "seconds a step", 1.0),
    ("memory", "memory a worker, GB", 1e9),
    ("sent", "sent by the busiest worker a step, GB", 1e9),
)


def require_matplotlib() -> None:
    """Raise unless there is something to draw with."""
    if find_spec("matplotlib") is None:
        raise MissingPackage("matplotlib", "plot")


def draw(plan: Plan, path: Path) -> None:
    """Draw four panels into a file."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 9), layout="constrained")
    title = f"{plan.profile.name}, {plan.profile.parameters / 1e6:,.3g} million parameters"
    wire = f"{plan.cluster.bandwidth * 8 / 1e9:g} Gbit/s, {plan.cluster.latency * 1e6:g} µs"
    figure.suptitle(f"{title}, {wire}", x=0.01, ha="left", fontsize=16, fontweight="bold")
    panels = figure.subplots(2, 2).flat
    for axes, (column, label, unit) in zip(panels, _PANELS, strict=True):
        _lines(axes, plan.table, column, unit)
        axes.set_title(label, fontsize=12, fontweight="bold", loc="left")
    _recommended(figure.axes[0], plan)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _lines(axes: Axes, table: pd.DataFrame, column: str, unit: float) -> None:
    for number, name in enumerate(STRATEGIES):
        one = table[(table["strategy"] == name) & (table[column] > 0)]
        if one.empty:
            continue
        style = ("-", "--", ":")[number // len(_COLOURS)]
        label = f"{name} (not exact)" if name in INEXACT else name
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(one["workers"], one[column] / unit, style, color=colour, marker=".", label=label)
    axes.set_xscale("log")
    if column == "efficiency":
        axes.set_ylim(0, 1.05)
    else:
        axes.set_yscale("log")
    axes.set_xlabel("workers")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)


def _recommended(axes: Axes, plan: Plan) -> None:
    found = plan.recommendation
    if found.strategy is None:
        return
    rows = plan.table.set_index(["strategy", "workers"])
    height = rows["efficiency"][found.strategy, found.workers]
    axes.plot([found.workers], [height], "o", markersize=14, mfc="none", mec="black", mew=2)
    axes.annotate(
        f"{found.strategy} on {found.workers:,}", (found.workers, height), (8, 12),
        textcoords="offset points", fontweight="bold",
    )  # fmt: skip
