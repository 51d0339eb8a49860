"""A chart: lines over two axes, inside a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from farandole.explain.drawing import INK, Drawing, Point

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
