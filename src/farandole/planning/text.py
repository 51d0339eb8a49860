"""A plan as text: how each strategy scales, and all figures at the recommended size."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from farandole.planning.strategies import INEXACT, STRATEGIES

if TYPE_CHECKING:
    from rich.table import Table

    from farandole.planning.plan import Plan

_COLUMNS = 8
_WIDTH = 120


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


def duration(seconds: float) -> str:
    """Seconds as a person reads them.

    >>> duration(0.0123), duration(75)
    ('12.3 ms', '75 s')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e6:.3g} µs"


def nbytes(value: float) -> str:
    """Bytes as a person reads them.

    >>> nbytes(1.25e9), nbytes(0)
    ('1.25 GB', '0 B')
    """
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


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
    "seconds": duration,
    "efficiency": lambda value: f"{value:.0%}",
    "memory": nbytes,
    "fits": lambda value: "yes" if value else "no",
    "sent": nbytes,
    "lost": lambda value: f"{value:.1%}",
    "money": lambda value: f"{value:,.2f}" if math.isfinite(value) else "no end",
}
