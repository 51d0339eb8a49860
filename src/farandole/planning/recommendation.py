"""Recommendation: which strategy, on how many workers, and why."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pandas as pd

from farandole.parallel import Strategy
from farandole.planning import constants
from farandole.planning.strategies import INEXACT, STRATEGIES
from farandole.planning.units import format_bytes, format_seconds

_NOTABLE = 0.005
"""A share of time that is worth a word."""


@dataclass(frozen=True)
class Recommendation:
    """What to do, and the reason in a sentence or two."""

    strategy: str | None
    """None: nothing fits."""
    workers: int
    reason: str
    use: Strategy | None = None
    """The same as an object, for `strategy=` of `farandole.train`."""

    def __str__(self) -> str:
        if self.strategy is None:
            return self.reason
        plural = "" if self.workers == 1 else "s"
        how = "" if self.use is None else f" Use strategy={typed(self.use)}."
        return f"{self.strategy} on {self.workers:,} worker{plural}: {self.reason}{how}"


def typed(strategy: Any) -> str:
    """What a person would type for a strategy: no options that are as usual.

    >>> from farandole.parallel import AllReduce, Hybrid, Sharded
    >>> typed(AllReduce()), typed(Hybrid(data=4, inner=Sharded(stage=2)))
    ('AllReduce()', 'Hybrid(data=4, inner=Sharded(stage=2))')
    """
    if not is_dataclass(strategy) or isinstance(strategy, type):
        return repr(strategy)
    usual = type(strategy)()
    options = [
        f"{field.name}={typed(getattr(strategy, field.name))}"
        for field in fields(strategy)
        if field.init and getattr(strategy, field.name) != getattr(usual, field.name)
    ]
    return f"{type(strategy).__name__}({', '.join(options)})"


def recommend(table: pd.DataFrame, memory: float | None, crossing: float) -> Recommendation:
    """The most workers that are worth it, and there the simplest strategy that is about fastest.

    Args:
        table: of a plan.
        memory: bytes that a worker has, if that is known.
        crossing: workers from which on the latency of all-reduce's ring outweighs its bytes.
    """
    exact = table[~table["strategy"].isin(INEXACT)]
    fitting = exact if memory is None else exact[exact["memory"] <= memory]
    if fitting.empty:
        least = exact.nsmallest(1, "memory").iloc[0]
        return Recommendation(None, int(least["workers"]), _nothing(least, memory or 0.0))
    worthy = fitting[_useful(fitting) >= constants.WORTH_IT]
    # More workers are worth it as long as at least half of each one's work arrives.
    workers = int((worthy if len(worthy) else fitting.nsmallest(1, "seconds"))["workers"].max())
    here = fitting[fitting["workers"] == workers].set_index("strategy")
    chosen = _simplest(here["seconds"])
    before = _crowded_out(exact, workers, chosen, memory)
    reason = _reason(here.loc[[chosen]].iloc[0], before, float(here["seconds"].min()))
    largest = int(table["workers"].max())
    return Recommendation(chosen, workers, reason + _beyond(fitting, workers, largest, crossing))


def _useful(table: pd.DataFrame) -> pd.Series[float]:
    """Efficiency after what failures take."""
    return table["efficiency"] * (1 - table["lost"])


def _simplest(seconds: pd.Series[float]) -> str:
    """The first of the list that no later one clearly beats."""
    names = [name for name in STRATEGIES if name in seconds.index]
    return next(n for n in names if seconds.min() >= constants.CLEARLY * seconds[n])


def _crowded_out(exact: pd.DataFrame, workers: int, chosen: str, memory: float | None) -> str:
    """What would be simpler, but doesn't fit."""
    names = list(STRATEGIES)
    simpler = exact[(exact["workers"] == workers) & (exact["memory"] > (memory or float("inf")))]
    tight = [n for n in simpler["strategy"] if names.index(n) < names.index(chosen)]
    return (
        f"{tight[0]} doesn't fit into {format_bytes(memory or 0)}; of what does, " if tight else ""
    )


def _reason(row: pd.Series[float], before: str, fastest: float) -> str:
    what = "the fastest that is exact"
    if row["seconds"] > fastest:  # see _simplest
        what = f"the simplest that nothing exact beats by over {1 - constants.CLEARLY:.0%}"
    useful = row["efficiency"] * (1 - row["lost"])
    words = f"{before}{what}, at {useful:.0%} of perfect scaling"
    if row["lost"] >= _NOTABLE:
        words += f" after what failures take ({row['lost']:.0%})"
    money = row.get("money")
    paid = f" and {money:,.2f} an epoch" if money is not None else ""
    return f"{words}, {format_seconds(row['seconds'])} a step{paid}."


def _beyond(fitting: pd.DataFrame, workers: int, largest: int, crossing: float) -> str:
    if workers >= largest:
        return ""
    rest = fitting[fitting["workers"] > workers]
    words = ""
    if len(rest):
        best, left = int(rest["workers"].min()), float(_useful(rest).max())
        words = f" From {best:,} workers on, at most {left:.0%} is left."
    if crossing < largest:
        what = "the latency of all-reduce's ring outweighs its bytes"
        words += f" Beyond about {max(crossing, 2):,.0f} workers, {what}."
    return words


def _nothing(least: pd.Series[float], memory: float) -> str:
    return (
        f"Nothing fits into {format_bytes(memory)} a worker: {least['strategy']} on "
        f"{int(least['workers']):,} workers needs least, {format_bytes(least['memory'])}. Use more "
        "workers, fewer rows a worker, or workers with more memory."
    )
