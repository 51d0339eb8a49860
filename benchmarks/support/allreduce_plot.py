"""The figures of allreduce.py as a drawing: time over size, both logarithmic, a panel a ring."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 300, 60, 40, 30
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


class Scale:
    """A logarithmic axis."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = math.floor(math.log10(low)), math.ceil(math.log10(high))
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def draw(figures: dict[str, Any], ways: Sequence[str], path: Path) -> None:
    """Write an SVG; theory is the dashed line."""
    every = [value for found in figures.values() for value in _all_values(found)]
    sizes = [float(size) for found in figures.values() for size in found["seconds"]]
    parts = []
    for number, (count, found) in enumerate(figures.items()):
        left = LEFT + number * (WIDTH + GAP)
        across = Scale(min(sizes), max(sizes) * 1.001, left, left + WIDTH)
        up = Scale(min(every), max(every), TOP + HEIGHT, TOP)
        parts += _grid(across, up, f"{count} workers", first=number == 0)
        parts += _lines(found, ways, across, up)
    width = LEFT + len(figures) * (WIDTH + GAP)
    parts += _legend(ways)
    style = "font-family='sans-serif' font-size='12'"
    size = f"width='{width}' height='{TOP + HEIGHT + 80}'"
    text = "\n".join(parts)
    path.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {style}>\n"
        f"<rect width='100%' height='100%' fill='white'/>\n{text}\n</svg>\n"
    )


def _all_values(found: dict[str, Any]) -> list[float]:
    medians = [statistics.median(v) for ways in found["seconds"].values() for v in ways.values()]
    return [*medians, *found["theory"].values()]


def _grid(across: Scale, up: Scale, title: str, *, first: bool) -> list[str]:
    left, right, bottom, top = across.start, across.end, up.start, up.end
    parts = [f"<text x='{(left + right) / 2}' y='{top - 12}' text-anchor='middle'>{title}</text>"]
    for tick in across.ticks:
        x = across(tick)
        parts.append(f"<path d='M{x:.1f} {bottom}V{top}' stroke='#ddd'/>")
        parts.append(f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle'>{tick:g} MB</text>")
    for tick in up.ticks:
        y = up(tick)
        parts.append(f"<path d='M{left} {y:.1f}H{right}' stroke='#ddd'/>")
        if first:
            label = f"{tick * 1e3:g} ms"
            parts.append(f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end'>{label}</text>")
    return parts


def _lines(found: dict[str, Any], ways: Sequence[str], across: Scale, up: Scale) -> list[str]:
    series = {
        way: {size: statistics.median(each[way]) for size, each in found["seconds"].items()}
        for way in ways
    }
    parts = [
        _line(series[way], across, up, f"stroke='{colour}' stroke-width='2'")
        for way, colour in zip(ways, COLOURS, strict=True)
    ]
    return [*parts, _line(found["theory"], across, up, "stroke='black' stroke-dasharray='5 4'")]


def _line(points: dict[str, float], across: Scale, up: Scale, style: str) -> str:
    places = [f"{across(float(x)):.1f} {up(y):.1f}" for x, y in points.items()]
    return f"<path d='M{'L'.join(places)}' fill='none' {style}/>"


def _legend(ways: Sequence[str]) -> list[str]:
    names = [*zip(ways, COLOURS, strict=True), ("ring in theory", "black")]
    y = TOP + HEIGHT + 50
    parts = []
    for number, (name, colour) in enumerate(names):
        x = LEFT + number * 150
        parts.append(f"<path d='M{x} {y}h24' stroke='{colour}' stroke-width='2'/>")
        parts.append(f"<text x='{x + 30}' y='{y + 4}'>{name}</text>")
    return parts
