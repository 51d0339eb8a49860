"""A recorded run: what the workers of a real run did and when, read from the file of a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farandole.errors import InputError
from farandole.parallel import Span, trace

_ROUNDING = 1e-7  # seconds, that a number may lose on its way through a file
_AGAIN = "Record one with farandole.train(…, trace='run.json')."


@dataclass(frozen=True)
class RecordedRun:
    """All spans of a run, by worker; seconds from its beginning."""

    strategy: str
    ranks: tuple[int, ...]
    """Of the workers that have recorded something."""
    workers: tuple[tuple[Span, ...], ...]

    @property
    def end(self) -> float:
        """When the last span was over."""
        return max(span.end for spans in self.workers for span in spans)

    def steps(self) -> list[tuple[float, float]]:
        """When each step of training began and ended, over all workers.

        A worker's step ends when its optimizer has made one. A run without is one long step.
        """
        ends = [[span.end for span in spans if span.kind == "step"] for spans in self.workers]
        count = min(map(len, ends))
        if count == 0:
            return [(0.0, self.end)]
        return [
            (
                min(mine[number - 1] if number else 0.0 for mine in ends),
                max(mine[number] for mine in ends),
            )
            for number in range(count)
        ]


def read_trace(path: str | os.PathLike[str]) -> RecordedRun:
    """Read what `farandole.train(trace=...)` has written.

    >>> read_trace("no-such-run.json")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no trace at 'no-such-run.json'. Record one with ...
    """
    name = os.fspath(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"There is no trace at {name!r}. {_AGAIN}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{name!r} can't be read as a trace: {error}. {_AGAIN}") from error
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list):
        raise InputError(f"{name!r} has no list of traceEvents. {_AGAIN}")
    spans = _spans(name, events)
    if not spans:
        kinds = ", ".join(trace.KINDS)
        raise InputError(f"{name!r} has no event of a kind that is drawn: {kinds}. {_AGAIN}")
    about = found.get("otherData")
    strategy = str(about.get("strategy", "")) if isinstance(about, dict) else ""
    workers = _by_worker(spans)
    return RecordedRun(strategy or "unknown strategy", tuple(workers), tuple(workers.values()))


def _spans(name: str, events: Iterable[Any]) -> list[tuple[int, Span]]:
    try:
        return [
            (int(event["tid"]), _span(event))
            for event in events
            if event.get("ph") == "X" and event.get("cat") in trace.KINDS
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        words = f"{type(error).__name__}: {error}"
        raise InputError(f"{name!r} has an event that can't be read ({words}). {_AGAIN}") from error


def _span(event: dict[str, Any]) -> Span:
    start = float(event["ts"]) / 1e6
    length = float(event["dur"]) / 1e6
    if not (start >= 0 and length >= 0):
        raise ValueError(f"ts={event['ts']}, dur={event['dur']}")
    label = str(event.get("name", "")).removeprefix(event["cat"]).strip()
    return Span(event["cat"], start, start + length, label)


def _by_worker(spans: list[tuple[int, Span]]) -> dict[int, tuple[Span, ...]]:
    workers: dict[int, list[Span]] = {}
    for rank, span in spans:
        workers.setdefault(rank, []).append(span)
    # What lies within something else comes after it.
    return {
        rank: _with_waits(sorted(workers[rank], key=lambda span: (span.start, -span.end)))
        for rank in sorted(workers)
    }


def _with_waits(spans: list[Span]) -> tuple[Span, ...]:
    """What is "compute" around the passes of a pipeline: between them a stage waits for others."""
    passes = ("forward", "backward")
    frames = {
        id(outer)
        for span, around in nested(spans)
        for outer in around
        if span.kind in passes and outer.kind == "compute"
    }
    return tuple(
        replace(span, kind="wait", label="for a neighbour") if id(span) in frames else span
        for span in spans
    )


def nested(spans: Iterable[Span]) -> Iterator[tuple[Span, list[Span]]]:
    """Each span with those that it lies within, the innermost last."""
    around: list[Span] = []
    for span in spans:
        while around and around[-1].end + _ROUNDING < span.end:
            around.pop()
        yield span, around
        around.append(span)


def shares(spans: Iterable[Span], start: float, end: float) -> dict[str, float]:
    """Which part of a time went into what; a span that lies within another counts for itself.

    >>> spans = [Span("sum", 0, 4), Span("wait", 1, 4), Span("step", 4, 5)]
    >>> shares(spans, 0, 10)
    {'sum': 0.1, 'wait': 0.3, 'step': 0.1}
    """
    seconds: dict[str, float] = {}
    for span, around in nested(spans):
        length = min(span.end, end) - max(span.start, start)
        if length > 0:
            seconds[span.kind] = seconds.get(span.kind, 0.0) + length
            if around:
                seconds[around[-1].kind] = seconds.get(around[-1].kind, 0.0) - length
    return {kind: seconds[kind] / (end - start) for kind in trace.KINDS if kind in seconds}
