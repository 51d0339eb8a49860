"""explain … --trace: the timeline of a real run, a lane a worker."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from farandole.errors import InputError
from farandole.explain import terminal
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
from farandole.explain.page import Frame, write_page
from farandole.explain.trace_file import RecordedRun, nested, read_trace, shares
from farandole.parallel import Span, trace

_SHOWN = 10  # steps, unless others are asked for
_MOST = 40


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


def explain_trace(
    path: Path, trace: str | os.PathLike[str], steps: str | int | None = None
) -> None:
    """Print what the time of a recorded run went into, and write a page of its timeline.

    Args:
        path: where the page goes.
        trace: the file that `farandole.train(trace=...)` has written.
        steps: which ones to draw, from 1: "5", or "5-8". By default the first ten.
    """
    run = read_trace(trace)
    times = run.steps()
    first, last = _chosen(steps, len(times))
    frames = _frames(run, times, first, last)
    title = f"A recorded run: {run.strategy}, {len(run.workers)} workers"
    write_page(path, title, frames, seconds=3)
    console = terminal.console()
    console.print(f"{title}, {len(times)} steps, {run.end:.3g} s", style="bold")
    start, end = times[first - 1][0], times[last - 1][1]
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    console.print(f"Shares of the time of {which}:")
    console.print(_table(run, start, end))
    console.print(
        "What is not recorded is idle time: reading rows, or a stage that waits for another."
    )


def _chosen(steps: str | int | None, count: int) -> tuple[int, int]:
    """The first and the last step, checked."""
    if steps is None:
        return 1, min(count, _SHOWN)
    found = re.fullmatch(r"\s*(\d+)\s*(?:[-–]\s*(\d+)\s*)?", str(steps))
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= count:
        raise InputError(
            f'steps must be a number or two, such as "3-6", from 1 to {count}: so many were '
            f"recorded. Received: steps={steps!r}"
        )
    if last - first >= _MOST:
        raise InputError(f"At most {_MOST} steps can be drawn. Received: steps={steps!r}")
    return first, last


def _frames(
    run: RecordedRun, times: list[tuple[float, float]], first: int, last: int
) -> list[Frame]:
    windows = [(f"Step {number} of {len(times)}", times[number - 1])
               for number in range(first, last + 1)]  # fmt: skip
    if last > first:
        together = (times[first - 1][0], times[last - 1][1])
        windows.insert(0, (f"Steps {first} to {last} of {len(times)}", together))
    return [
        Frame(phase, draw_lanes(run, *window, phase), _caption(run, *window))
        for phase, window in windows
    ]


def _caption(run: RecordedRun, start: float, end: float) -> str:
    total: dict[str, float] = {}
    for spans in run.workers:
        for kind, share in shares(spans, start, end).items():
            total[kind] = total.get(kind, 0.0) + share / len(run.workers)
    parts = ", ".join(f"{kind} {share:.0%}" for kind, share in total.items())
    hidden = len(run.workers) - LANES
    more = f" {hidden} more workers are not drawn." if hidden > 0 else ""
    return f"{(end - start) * 1000:.3g} ms. Mean shares of a worker's time: {parts}.{more}"


def _table(run: RecordedRun, start: float, end: float) -> object:
    rows, seen = [], {span.kind for spans in run.workers for span in spans}
    kinds = [kind for kind in trace.KINDS if kind in seen]
    for rank, spans in zip(run.ranks, run.workers, strict=True):
        share = shares(spans, start, end)
        rest = 1 - sum(share.values())
        cells = [f"{share.get(kind, 0.0):.1%}" for kind in kinds]
        rows.append([f"rank {rank}", *cells, f"{rest:.1%}"])
    return terminal.plain_table(["", *(f"{kind:>9}" for kind in (*kinds, "rest"))], rows)


def draw_lanes(run: RecordedRun, start: float, end: float, label: str) -> Drawing:
    """Draw what every worker did between two times.

    Args:
        run: of the run.
        start: in seconds from its beginning.
        end: the same.
        label: what the drawing shows, for those who can't see it.
    """
    drawing = Drawing(1600, 640, label)
    shown = run.workers[:LANES]
    row = (_BOTTOM - _TOP) / len(shown)
    for worker, spans in enumerate(shown):
        y, height = _TOP + worker * row, min(row - 12, 130.0)
        # As the labels of spans, and errors, call it.
        name = f"rank {run.ranks[worker]}"
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
