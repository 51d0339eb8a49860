"""The page of explain activations: a function at a time, with its slope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pandas as pd

from farandole.explain.chart import Chart
from farandole.explain.drawing import BLUE, VERMILION, Drawing, Point
from farandole.explain.page import Frame

_KINK = 0.5  # a slope that changes by more from one point to the next has jumped


def activation_frames(curves: pd.DataFrame, table: pd.DataFrame) -> Iterator[Frame]:
    """Draw each activation.

    Args:
        curves: what `activation_curves` gives.
        table: what `activation_table` gives.
    """
    for row in table.to_dict("records"):
        name = row["activation"]
        curve = curves[curves["activation"] == name]
        caption = (
            f"f(a) = {row['formula']}, values in {row['range']}. Its slope is "
            f"{row['slope_at_0']:.3g} at 0 and {row['largest_slope']:.3g} at most: going back "
            f"through 20 layers leaves {row['through_20_layers']:.2g} of a gradient, at best."
        )
        yield Frame(name, _draw(name, curve), caption)


def _draw(name: str, curve: pd.DataFrame) -> Drawing:
    drawing = Drawing(1600, 640, f"{name} and its slope")
    chart = Chart(drawing, (120, 1560), (590, 20), (-4, 4), (-1.25, 3.25))
    chart.axes([(a, _number(a)) for a in range(-4, 5)], [(y, _number(y)) for y in range(-1, 4)])
    chart.curve([(0, -1.25), (0, 3.25)], "#AAAAAA", thick=2)
    chart.curve([(-4, 0), (4, 0)], "#AAAAAA", thick=2)
    chart.curve(_points(curve, "value"), BLUE, thick=8)
    for piece in _pieces(_points(curve, "slope")):
        chart.curve(piece, VERMILION, thick=6, dashed=True)
    for y, words, colour in ((2.9, "f(a)", BLUE), (2.5, "slope f′(a), dashed", VERMILION)):
        chart.note(-3.8, y, words, colour, anchor="start")
    return drawing


def _number(number: int) -> str:
    return str(number).replace("-", "−")


def _points(curve: pd.DataFrame, column: str) -> list[Point]:
    """Every other point is enough for a line; those beyond the chart are left out."""
    pairs = zip(curve["a"].tolist(), curve[column].tolist(), strict=True)
    return [(a, value) for a, value in list(pairs)[::2] if -1.25 <= value <= 3.25]


def _pieces(points: Sequence[Point]) -> list[list[Point]]:
    """Cut a line where it jumps: a jump is a gap, not a wall."""
    pieces = [[points[0]]]
    for before, point in pairwise(points):
        if abs(point[1] - before[1]) > _KINK:
            pieces.append([])
        pieces[-1].append(point)
    return pieces
