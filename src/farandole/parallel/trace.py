"""Trace: what a worker did and when, for those who want to see it. Costs nothing when off."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from farandole.arguments import check_path
from farandole.errors import InputError

KINDS = ("forward", "backward", "compute", "sum", "send", "wait", "step")


@dataclass(frozen=True)
class Span:
    """Something that a worker did, from one moment to another, in seconds of the wall clock."""

    kind: str
    """One of `KINDS`."""
    start: float
    end: float
    label: str = ""
    """What exactly: a micro-batch, a chunk, a peer."""


_recorder: ContextVar[list[Span] | None] = ContextVar("farandole_trace", default=None)


@contextmanager
def recorded(spans: list[Span] | None) -> Iterator[None]:
    """Let everything in the body of a `with` be added to `spans`; None records nothing.

    >>> spans = []
    >>> with recorded(spans), span("compute", "a"):
    ...     pass
    >>> spans[0].kind, spans[0].label
    ('compute', 'a')
    """
    token = _recorder.set(spans)
    try:
        yield
    finally:
        _recorder.reset(token)


def span(kind: str, label: str = "") -> AbstractContextManager[None]:
    """Record the body of a `with`, if anybody wants to know."""
    spans = _recorder.get()
    return nullcontext() if spans is None else _recording(spans, kind, label)


@contextmanager
def _recording(spans: list[Span], kind: str, label: str) -> Iterator[None]:
    start = time.time()
    try:
        yield
    finally:
        spans.append(Span(kind, start, time.time(), label))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise if there can't be a trace at a path: after hours of training it would be too late.

    >>> check_writable("no-such-folder/run.json")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: trace can't be written to 'no-such-folder/run.json': No such ...
    """
    check_path("trace", path)
    try:
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise InputError(
            f"trace can't be written to {os.fspath(path)!r}: {error.strerror}. Name a file in a "
            "folder that exists."
        ) from error


def write_trace(
    path: str | os.PathLike[str], strategy: str, workers: Sequence[Sequence[Span]]
) -> None:
    """Write the spans of all workers, as JSON that Chrome's and Perfetto's viewers read too."""
    first = min((span.start for spans in workers for span in spans), default=0.0)
    events = [
        {
            "name": f"{span.kind} {span.label}".strip(),
            "cat": span.kind,
            "ph": "X",
            "pid": 0,
            "tid": rank,
            "ts": (span.start - first) * 1e6,
            "dur": (span.end - span.start) * 1e6,
        }
        for rank, spans in enumerate(workers)
        for span in spans
    ]
    about = {"strategy": strategy, "workers": len(workers)}
    Path(path).write_text(json.dumps({"traceEvents": events, "otherData": about}))
