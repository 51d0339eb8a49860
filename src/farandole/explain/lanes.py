"""The drawing of a recording: a lane a worker, from one moment to another."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.explain.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE_BLUE,
    PALE_GREEN,
    PALE_GREY,
    PALE_ORANGE,
    SMALLEST,
    VERMILION,
    WHITE,
    YELLOW,
    Drawing,
    length,
)
from farandole.explain.recording import Recording, nested
from farandole.parallel import Span

LANES = 12  # at most
_COLOURS = {
    "forward": (PALE_BLUE, BLUE),
    "backward": (PALE_ORANGE, VERMILION),
    "compute": (PALE_BLUE, BLUE),
    "sum": (PALE_GREEN, GREEN),
    "send": (VERMILION, INK),
    "wait": (PALE_GREY, GREY),
    "step": (YELLOW, INK),
}
_LEFT, _RIGHT, _TOP, _BOTTOM = 150.0, 1590.0, 60.0, 540.0
_NARROWEST = 1.0  # thinner spans can't be seen, and would make a page of megabytes


def draw_lanes(recording: Recording, start: float, end: float, label: str) -> Drawing:
    """Draw what every worker did between two moments.

    Args:
        recording: of the run.
        start: in seconds from its beginning.
        end: the same.
        label: what the drawing shows, for those who can't see it.
    """
    drawing = Drawing(1600, 640, label)
    shown = recording.workers[:LANES]
    row = (_BOTTOM - _TOP) / len(shown)
    for worker, spans in enumerate(shown):
        y, height = _TOP + worker * row, min(row - 12, 130.0)
        # As the labels of spans, and errors, call it.
        name = f"rank {recording.ranks[worker]}"
        drawing.text(4, y + height / 2 + 10, name, anchor="start", bold=True)
        drawing.box(_LEFT, y, _RIGHT - _LEFT, height, edge=GREY, thick=1)
        parents = {id(around[-1]) for _, around in nested(spans) if around}
        for span, around in nested(spans):
            words = [] if id(span) in parents else [span.label or span.kind, span.kind]
            _draw_span(drawing, span, words, (start, end), (y, height), len(around))
    _draw_scale(drawing, start, end)
    _draw_legend(drawing, {span.kind for spans in shown for span in spans})
    return drawing


def _draw_span(
    drawing: Drawing,
    span: Span,
    words: Sequence[str],
    window: tuple[float, float],
    row: tuple[float, float],
    depth: int,
) -> None:
    start, end = window
    scale = (_RIGHT - _LEFT) / (end - start)
    left = _LEFT + (max(span.start, start) - start) * scale
    right = _LEFT + (min(span.end, end) - start) * scale
    if right - left < _NARROWEST:
        return
    fill, edge = _COLOURS[span.kind]
    (y, height), inset = row, min(depth, 2) * 0.2  # what lies within another is less high
    high = height * (1 - 1.3 * inset)
    room = (right - left - 14) / SMALLEST if high > 1.2 * SMALLEST else 0
    fitting = next((some for some in words if length(some) <= room), "")
    drawing.box(
        left, y + height * inset, right - left, high, fitting,
        fill=fill, edge=edge, thick=1, size=28,
    )  # fmt: skip


def _draw_scale(drawing: Drawing, start: float, end: float) -> None:
    for part in range(5):
        x = _LEFT + (_RIGHT - _LEFT) * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        words = f"{(start + (end - start) * part / 4) * 1000:.4g} ms"
        drawing.text(x, 36, words, size=25, anchor=anchor)
        drawing.line([(x, 44), (x, _TOP - 4)], colour=GREY, thick=2)


def _draw_legend(drawing: Drawing, kinds: set[str]) -> None:
    x = _LEFT
    for kind, (fill, edge) in _COLOURS.items():
        if kind in kinds:
            drawing.box(x, 588, 36, 36, fill=fill, edge=edge)
            drawing.text(x + 46, 615, kind, size=26, anchor="start")
            x += 46 + 18 * len(kind) + 44
    drawing.box(x, 588, 36, 36, fill=WHITE, edge=GREY)
    drawing.text(x + 46, 615, "not recorded", size=26, anchor="start")
