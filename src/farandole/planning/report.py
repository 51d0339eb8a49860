"""A plan as text and as a picture: how each strategy scales, and all figures."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from farandole.errors import MissingPackage
from farandole.planning.strategies import INEXACT, STRATEGIES
from farandole.planning.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

    from farandole.planning.plan import Plan

_COLUMNS = 8
_WIDTH = 120
# Told apart by all eyes (Okabe and Ito); dashes tell the families of strategies.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#9A9A9A")
_PANELS = (
    ("efficiency", "scaling efficiency", 1.0),
    ("seconds", "seconds a step", 1.0),
    ("memory", "memory a worker, GB", 1e9),
    ("sent", "sent by the busiest worker a step, GB", 1e9),
)

_HEADS = {
    "seconds": "a step",
    "efficiency": "eff.",
    "memory": "memory",
    "fits": "fits",
    "sent": "sent",
    "lost": "lost",
    "money": "an epoch",
}
_SHOWN: dict[str, Callable[[Any], str]] = {
    "seconds": format_seconds,
    "efficiency": lambda value: f"{value:.0%}",
    "memory": format_bytes,
    "fits": lambda value: "yes" if value else "no",
    "sent": format_bytes,
    "lost": lambda value: f"{value:.1%}",
    "money": lambda value: f"{value:,.2f}" if math.isfinite(value) else "no end",
}


def as_text(plan: Plan) -> str:
    """The tables and the recommendation, for a terminal of any width."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, force_terminal=False)
    for part in tables(plan):
        console.print(part)
    console.print(closing(plan), highlight=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.rstrip()


def closing(plan: Plan) -> str:
    """The recommendation, and who would not train this network."""
    named = ", ".join(plan.refused)
    rest = f"\nNot for this network, or not on all of these workers: {named} (see `refused`)."
    return str(plan.recommendation) + (rest if named else "")


def tables(plan: Plan) -> list[Table]:
    """Efficiency over workers, and the figures at the recommended number of workers."""
    return [_scaling(plan.table), _figures(plan.table, plan.recommendation.workers)]


def _scaling(table: pd.DataFrame) -> Table:
    rows = table[["strategy", "workers", "efficiency"]].to_numpy().tolist()
    found = {(name, count): efficiency for name, count, efficiency in rows}
    counts = _some(sorted(set(table["workers"])))
    text = _table("Scaling efficiency, by workers (~ not exact)", [f"{n:,}" for n in counts])
    for name in STRATEGIES:
        cells = [found.get((name, count)) for count in counts]
        if any(cells):
            text.add_row(_marked(name), *("–" if c is None else f"{c:.0%}" for c in cells))
    return text


def _figures(table: pd.DataFrame, workers: int) -> Table:
    here = table[table["workers"] == workers]
    idle = {"lost"} if not here["lost"].any() else set()
    shown = {name: show for name, show in _SHOWN.items() if name in here and name not in idle}
    text = _table(f"On {workers:,} workers", [_HEADS[name] for name in shown])
    for row in here.to_dict("records"):
        text.add_row(_marked(row["strategy"]), *(show(row[name]) for name, show in shown.items()))
    return text


def _table(title: str, heads: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    text = Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False
    )
    text.add_column("strategy", no_wrap=True)
    for head in heads:
        text.add_column(head, justify="right", no_wrap=True)
    return text


def _marked(name: str) -> str:
    return f"{name} ~" if name in INEXACT else name


def _some(counts: list[int]) -> list[int]:
    """A few of many, the first and the last among them."""
    if len(counts) <= _COLUMNS:
        return counts
    last = len(counts) - 1
    return [counts[round(number * last / (_COLUMNS - 1))] for number in range(_COLUMNS)]


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
