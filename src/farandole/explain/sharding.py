"""explain sharding: who keeps which part of a network, and how a layer is put together again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.explain import terminal
from farandole.explain.chunk_grid import chunk_table, draw_grid, sent_line
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
from farandole.explain.page import Frame, check_drawable, write_page
from farandole.explain.simulation import (
    PartialSums,
    Words,
    as_sum,
    finished_parts,
    letter,
    megabytes,
    own_parts,
    sent_by,
    simulate,
)
from farandole.parallel import Step, schedules

if TYPE_CHECKING:
    from rich.table import Table


Scene = tuple[str, str, Step | None, PartialSums, Words]
"""A phase, what happens in words, the step, what all workers have after it, and how to call it."""


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


def explain_sharding(path: Path, *, workers: int = 4, values: int = 1_000_000) -> None:
    """Print what each worker keeps, and how one layer is gathered and its gradient scattered.

    Args:
        path: where the page goes.
        workers: how many share a network.
        values: how many parameters it has, 4 bytes each.
    """
    check_drawable("workers", workers, 2, 12)
    check_drawable("values", values, workers, 10**12)
    scenes = list(_scenes(workers))
    kept = memory_frames(workers, values)
    frames = [*kept, *_layer_frames(scenes, workers, values)]
    write_page(path, f"Sharding: {workers} workers keep one network", frames, seconds=3)
    console = terminal.console()
    console.print("What each worker keeps, with Adam", style="bold")
    console.print(memory_table(workers, values))
    for phase, caption, step, held, words in scenes:
        console.print("\n" + phase, style="bold")
        console.print(chunk_table(held, words))
        console.print(caption if step is None else sent_line(step))


def _scenes(workers: int) -> Iterator[Scene]:
    """One layer of ZeRO 3, from its parameters in shards to its gradient in shards."""
    gather, scatter = schedules.all_gather(workers), schedules.scatter_reduce(workers)
    *_, (_, summed) = simulate(scatter, own_parts(scatter))
    shards = finished_parts(summed)  # who ends with which sum keeps those parameters as well
    yield (
        "One layer: its parameters are in shards",
        "No worker has the whole layer: worker 1 keeps chunk b, worker 2 the next one, and so on.",
        None, shards, _parameters,
    )  # fmt: skip
    for number, (step, held) in enumerate(simulate(gather, shards), 1):
        words = (
            "Before a layer is used, its shards go round: each worker passes on what it got last."
        )
        yield f"All-gather, step {number} of {workers - 1}", words, step, held, _parameters
    yield (
        "Backward pass: every worker has a gradient of its own",
        "With the whole layer each worker computes, on its own rows; then it drops the "
        "parameters that are not its own. a1 is worker 1's gradient of chunk a.",
        None, own_parts(scatter), as_sum(workers),
    )  # fmt: skip
    for number, (step, held) in enumerate(simulate(scatter, own_parts(scatter)), 1):
        words = (
            "Each worker sends one chunk to its right neighbour and adds what comes from the left."
        )
        phase = f"Reduce-scatter, step {number} of {workers - 1}"
        yield phase, words, step, held, as_sum(workers)
    yield (
        "The gradient in shards",
        "Each worker has the whole sum of the chunk it keeps, and drops the rest: that is all its "
        "optimizer needs. No all-gather of gradients follows.",
        None, shards, as_sum(workers),
    )  # fmt: skip


def _parameters(chunk: int, parts: frozenset[int]) -> str:
    return letter(chunk) if parts else ""


def _layer_frames(scenes: list[Scene], workers: int, values: int) -> Iterator[Frame]:
    schedule = schedules.all_gather(workers)  # its chunks are those of the other direction too
    sent = [0] * workers
    for phase, caption, step, held, words in scenes:
        if step is not None:
            more = sent_by(schedule, step, values).tolist()
            sent = [before + now for before, now in zip(sent, more, strict=True)]
        below = [megabytes(count) for count in sent]
        yield Frame(phase, draw_grid(held, step, words, below, phase), caption)


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
    *_, (_, held) = simulate(schedule, own_parts(schedule))
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
