"""What each worker keeps: the whole, or shards of it, in the three stages of ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farandole.explain import terminal
from farandole.explain.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    VERMILION,
    WHITE,
    Drawing,
)
from farandole.explain.holdings import execute, finished_parts, own_parts
from farandole.explain.page import Frame
from farandole.explain.traffic import megabytes
from farandole.parallel import schedules

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class _Kind:
    name: str
    values: int  # a parameter
    split_from: int  # the stage of ZeRO that splits it
    colours: tuple[str, str]


_KINDS = (
    _Kind("parameters", 1, 3, (PALE_BLUE, BLUE)),
    _Kind("gradients", 1, 2, (PALE_ORANGE, VERMILION)),
    _Kind("optimizer state", 2, 1, (PALE_GREEN, GREEN)),  # Adam's two moments
)
_NAMES = ("All-reduce: nothing is split", "ZeRO 1", "ZeRO 2", "ZeRO 3")
_CAPTIONS = (
    "Every worker keeps everything: parameters, gradients, and the optimizer's state, which is "
    "two values a parameter with Adam.",
    "The optimizer's state is split: each worker updates its own shard, then they gather the "
    "parameters.",
    "Gradients are split too: a worker needs the sum only of the shard that it updates.",
    "Parameters are split too: a layer is gathered before it is used, and dropped after. That is "
    "what the next steps show.",
)


def kept_values(workers: int, values: int, stage: int, worker: int) -> int:
    """How many values a worker keeps at a stage of ZeRO (0: nothing is split).

    >>> [kept_values(4, 100, stage, 0) for stage in range(4)]
    [400, 250, 175, 100]
    """
    start, end = schedules.scatter_reduce(workers).bounds(values)[_shard(workers, worker)]
    return sum(
        kind.values * (end - start if stage >= kind.split_from else values) for kind in _KINDS
    )


def memory_table(workers: int, values: int) -> Table:
    """What the worker that keeps most keeps, to print."""
    rows = []
    for stage, name in enumerate(_NAMES):
        most = max(kept_values(workers, values, stage, worker) for worker in range(workers))
        split = [kind.name for kind in _KINDS if stage >= kind.split_from]
        rows.append([name.partition(":")[0], megabytes(most), ", ".join(split) or "–"])
    return terminal.plain_table(["", "  a worker", "  split"], rows)


def memory_frames(workers: int, values: int) -> Iterator[Frame]:
    """Draw it, stage by stage."""
    for stage, name in enumerate(_NAMES):
        phase = f"What each worker keeps. {name}"
        drawing = Drawing(1600, 640, phase)
        for worker in range(workers):
            _draw_worker(drawing, workers, values, stage, worker)
        for number, kind in enumerate(_KINDS):
            drawing.box(60 + number * 400, 590, 40, 40, fill=kind.colours[0], edge=kind.colours[1])
            drawing.text(114 + number * 400, 620, kind.name, size=28, anchor="start")
        yield Frame(phase, drawing, _CAPTIONS[stage])


def _shard(workers: int, worker: int) -> int:
    """The chunk that a worker keeps: the one whose sum a scatter-reduce leaves with it."""
    schedule = schedules.scatter_reduce(workers)
    *_, (_, held) = execute(schedule, own_parts(schedule))
    return next(chunk for chunk, parts in enumerate(finished_parts(held)[worker]) if parts)


def _draw_worker(drawing: Drawing, workers: int, values: int, stage: int, worker: int) -> None:
    column = 1520 / workers
    x, unit = 40 + worker * column, (column - 24) / sum(kind.values for kind in _KINDS)
    name = f"worker {worker + 1}" if workers < 9 else f"w{worker + 1}"
    drawing.text(x + (column - 24) / 2, 40, name, size=30, bold=True)
    for kind in _KINDS:
        _draw_kind(drawing, x, unit * kind.values, workers, kind, stage, _shard(workers, worker))
        x += unit * kind.values
    size = megabytes(kept_values(workers, values, stage, worker))
    drawing.text(
        40 + (worker + 0.5) * column - 12, 560, size, size=30 if workers < 9 else 24, bold=True,
        name=f"worker {worker + 1}, memory",
    )  # fmt: skip


def _draw_kind(
    drawing: Drawing, x: float, width: float, workers: int, kind: _Kind, stage: int, shard: int
) -> None:
    height = 450 / workers
    for chunk in range(workers):
        kept = stage < kind.split_from or chunk == shard
        fill, edge = kind.colours if kept else (WHITE, GREY)
        drawing.box(
            x + 2, 64 + chunk * height, width - 4, height - 5,
            fill=fill, edge=edge if kept else GREY, thick=3 if kept else 1, dashed=not kept,
        )  # fmt: skip
    drawing.line([(x + 2, 522), (x + width - 2, 522)], colour=INK, thick=2)
