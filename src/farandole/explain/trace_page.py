"""explain … --trace: the timeline of a real run, as it was recorded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from farandole.errors import InputError
from farandole.explain import terminal
from farandole.explain.lanes import LANES, draw_lanes
from farandole.explain.page import Frame, write_page
from farandole.explain.recording import Recording, read_recording, shares
from farandole.parallel import trace

_SHOWN = 10  # steps, unless others are asked for
_MOST = 40


def explain_trace(
    path: Path, trace: str | os.PathLike[str], steps: str | int | None = None
) -> None:
    """Print what the time of a recorded run went into, and write a page of its timeline.

    Args:
        path: where the page goes.
        trace: the file that `farandole.train(trace=...)` has written.
        steps: which ones to draw, from 1: "5", or "5-8". By default the first ten.
    """
    recording = read_recording(trace)
    moments = recording.steps()
    first, last = _chosen(steps, len(moments))
    frames = _frames(recording, moments, first, last)
    title = f"A recorded run: {recording.strategy}, {len(recording.workers)} workers"
    write_page(path, title, frames, seconds=3)
    console = terminal.console()
    console.print(f"{title}, {len(moments)} steps, {recording.end:.3g} s", style="bold")
    start, end = moments[first - 1][0], moments[last - 1][1]
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    console.print(f"Shares of the time of {which}:")
    console.print(_table(recording, start, end))
    console.print("What is not recorded is rest: reading rows, or a stage that waits for another.")


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
    recording: Recording, moments: list[tuple[float, float]], first: int, last: int
) -> list[Frame]:
    windows = [(f"Step {number} of {len(moments)}", moments[number - 1])
               for number in range(first, last + 1)]  # fmt: skip
    if last > first:
        together = (moments[first - 1][0], moments[last - 1][1])
        windows.insert(0, (f"Steps {first} to {last} of {len(moments)}", together))
    return [
        Frame(phase, draw_lanes(recording, *window, phase), _caption(recording, *window))
        for phase, window in windows
    ]


def _caption(recording: Recording, start: float, end: float) -> str:
    total: dict[str, float] = {}
    for spans in recording.workers:
        for kind, share in shares(spans, start, end).items():
            total[kind] = total.get(kind, 0.0) + share / len(recording.workers)
    parts = ", ".join(f"{kind} {share:.0%}" for kind, share in total.items())
    hidden = len(recording.workers) - LANES
    more = f" {hidden} more workers are not drawn." if hidden > 0 else ""
    return f"{(end - start) * 1000:.3g} ms. Mean shares of a worker's time: {parts}.{more}"


def _table(recording: Recording, start: float, end: float) -> object:
    rows, seen = [], {span.kind for spans in recording.workers for span in spans}
    kinds = [kind for kind in trace.KINDS if kind in seen]
    for rank, spans in zip(recording.ranks, recording.workers, strict=True):
        share = shares(spans, start, end)
        rest = 1 - sum(share.values())
        cells = [f"{share.get(kind, 0.0):.1%}" for kind in kinds]
        rows.append([f"rank {rank}", *cells, f"{rest:.1%}"])
    return terminal.plain_table(["", *(f"{kind:>9}" for kind in (*kinds, "rest"))], rows)
