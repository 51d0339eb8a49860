"""A drawing that grows by boxes, words, arrows and lines, and is SVG in the end; charts in it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from farandole.explain.figure import BLUE, GREY, VERMILION

__all__ = ["BLUE", "GREEN", "GREY", "INK", "VERMILION", "WHITE", "YELLOW", "Drawing"]

# As in figure.py (Okabe and Ito); the light ones are to write on.
INK, WHITE, GREEN, YELLOW = "#1A1A1A", "#FFFFFF", "#009E73", "#F0E442"
PALE_BLUE, PALE_GREEN, PALE_ORANGE, PALE_GREY = "#D6E9F5", "#BFE8DA", "#FBDCC4", "#EDEDED"

Point = tuple[float, float]
SMALLEST = 20.0
"""The least size of words: 15 pixels on a projector of 1280 by 720."""
# Widths of letters, in heights of them: those of DejaVu Sans, as no usual font is wider.
_WIDTHS = {0.4: " ,.:;/()[]ijl|", 0.84: "+−=→∂", 0.98: "mwMW"}
_OF_EACH = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
_BOLD = 1.1
_SUM = re.compile(r"(?<![eE])\+")  # not the plus of 1e+300


class Drawing:
    """A picture of some size, in units of its own: a page scales it.

    Args:
        width: of the whole.
        height: of the whole.
        label: what it shows, for those who can't see it.

    >>> drawing = Drawing(200, 100, "a box")
    >>> drawing.box(10, 10, 80, 40, "a < b", name="first")
    >>> drawing.svg().count("a &lt; b")
    1
    """

    def __init__(self, width: float, height: float, label: str) -> None:
        self._head = (
            f'<svg viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">'
        )
        self._shapes: list[str] = []

    def svg(self) -> str:
        """All of it, as text."""
        return "\n".join([self._head, *self._shapes, "</svg>"])

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        *,
        fill: str = WHITE,
        edge: str = INK,
        thick: float = 2,
        dashed: bool = False,
        size: float = 28,
        bold: bool = False,
        name: str = "",
    ) -> None:
        """A rectangle with words in its middle, which shrink until they fit.

        `name` is how a script, or a test, finds the words again.
        """
        dashes = ' stroke-dasharray="7 6"' if dashed else ""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="7" '
            f'fill="{fill}" stroke="{edge}" stroke-width="{thick:g}"{dashes}/>'
        )
        if words:
            lines, fitting = _fitted(words, width, height, size, bold)
            middle = y + height / 2 + (0.35 - 0.58 * (len(lines) - 1)) * fitting
            self.text(x + width / 2, middle, *lines, size=fitting, bold=bold, name=name)

    def text(
        self,
        x: float,
        y: float,
        *lines: str,
        size: float = 26,
        anchor: str = "middle",
        colour: str = INK,
        bold: bool = False,
        name: str = "",
    ) -> None:
        """Words on a line, or on several; `anchor` says what is at x: start, middle or end."""
        first, *more = map(escape, lines)
        below = "".join(
            f'<tspan x="{x:.1f}" dy="{1.16 * size:.1f}">{line}</tspan>' for line in more
        )
        weight = ' font-weight="700"' if bold else ""
        named = f' data-name="{escape(name)}"' if name else ""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:.1f}" text-anchor="{anchor}" '
            f'fill="{colour}"{weight}{named}>{first}{below}</text>'
        )

    def line(
        self,
        points: Iterable[Point],
        *,
        colour: str = INK,
        thick: float = 3,
        dashed: bool = False,
    ) -> None:
        """A line through some points."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="10 8"' if dashed else ""
        self._shapes.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" '
            f'stroke-width="{thick:g}" stroke-linejoin="round"{dashes}/>'
        )

    def hatch(self, x: float, y: float, width: float, height: float) -> None:
        """Slanted lines over a rectangle, for what is empty on purpose."""
        strokes, step = [], 22.0
        for offset in range(1, int((width + height) / step) + 1):
            reach = offset * step
            start = (x + max(0.0, reach - height), y + min(reach, height))
            end = (x + min(reach, width), y + max(0.0, reach - width))
            strokes.append(f"M{start[0]:.0f} {start[1]:.0f}L{end[0]:.0f} {end[1]:.0f}")
        path = f'<path d="{"".join(strokes)}" stroke="{GREY}" stroke-width="1.5"/>'
        self._shapes.append(path)

    def arrow(self, start: Point, end: Point, *, colour: str = VERMILION, thick: float = 5) -> None:
        """A straight arrow. Its head is a shape of its own: markers would need names."""
        (x, y), head = end, 3.4 * thick
        angle = math.atan2(y - start[1], x - start[0])
        base = (x - head * math.cos(angle), y - head * math.sin(angle))
        aside = (-0.5 * head * math.sin(angle), 0.5 * head * math.cos(angle))
        corners = [(base[0] + aside[0], base[1] + aside[1]), end]
        corners.append((base[0] - aside[0], base[1] - aside[1]))
        self.line([start, base], colour=colour, thick=thick)
        places = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        self._shapes.append(f'<polygon points="{places}" fill="{colour}"/>')


def length(words: str, bold: bool = False) -> float:
    """How long words are, in heights of a letter.

    >>> round(length("a 3/8"), 2), length("wide") > length("fill")
    (2.72, True)
    """
    return sum(_OF_EACH.get(letter, 0.64) for letter in words) * (_BOLD if bold else 1)


def _fitted(
    words: str, width: float, height: float, size: float, bold: bool
) -> tuple[list[str], float]:
    """Words on one line or on two, and the size that they have in a box."""
    room = width - min(14.0, 0.15 * width)
    choices = []
    for lines in ([words], _halves(words)):
        across = min(room / length(line, bold) for line in lines)
        choices.append((min(size, across, height / (1.16 * len(lines))), lines))
    (one, line), (two, halves) = choices
    return (halves, max(SMALLEST, two)) if two > 1.1 * one else (line, max(SMALLEST, one))


def _halves(words: str) -> list[str]:
    """Cut a sum or a list in two."""
    between = "+" if _SUM.search(words) else ", "
    terms = _SUM.split(words) if between == "+" else words.split(between)
    if len(terms) == 1:
        return terms
    half = (len(terms) + 1) // 2
    return [between.join(terms[:half]) + between.rstrip(), between.join(terms[half:])]


Range = tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A part of a drawing that shows numbers.

    >>> chart = Chart(Drawing(100, 100, "empty"), (0, 100), (100, 0), (0, 10), (0, 1))
    >>> chart.place(5, 0.25)
    (50.0, 75.0)
    """

    drawing: Drawing
    across: Range
    """Where in the drawing the horizontal axis begins and ends."""
    up: Range
    """Where the vertical one does: from below."""
    x: Range
    """The least and the most number on the horizontal axis."""
    y: Range

    def place(self, x: float, y: float) -> Point:
        """Where two numbers are in the drawing."""
        return _scaled(x, self.x, self.across), _scaled(y, self.y, self.up)

    def axes(
        self, x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[tuple[float, str]]
    ) -> None:
        """Draw both axes, and a faint line at every number of the vertical one."""
        for value, words in y_ticks:
            _, y = self.place(self.x[0], value)
            self.drawing.line([(self.across[0], y), (self.across[1], y)], colour="#DDDDDD", thick=2)
            self.drawing.text(self.across[0] - 14, y + 10, words, size=28, anchor="end")
        for value, words in x_ticks:
            x, _ = self.place(value, self.y[0])
            self.drawing.text(x, self.up[0] + 36, words, size=28)
        corner = (self.across[0], self.up[0])
        self.drawing.line([(self.across[0], self.up[1]), corner, (self.across[1], self.up[0])])

    def curve(
        self, points: Sequence[Point], colour: str = INK, *, thick: float = 5, dashed: bool = False
    ) -> None:
        """Draw a line through points given as numbers."""
        places = [self.place(x, y) for x, y in points]
        self.drawing.line(places, colour=colour, thick=thick, dashed=dashed)

    def note(self, x: float, y: float, words: str, colour: str = INK, anchor: str = "end") -> None:
        """Write next to a point, a little above it."""
        left, top = self.place(x, y)
        self.drawing.text(left, top - 16, words, size=28, colour=colour, bold=True, anchor=anchor)


def _scaled(value: float, numbers: Range, places: Range) -> float:
    share = (value - numbers[0]) / (numbers[1] - numbers[0])
    return places[0] + share * (places[1] - places[0])
