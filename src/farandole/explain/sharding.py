"""explain sharding: who keeps which part of a network, and how a layer is put together again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from farandole.explain import terminal
from farandole.explain.grid import draw_grid
from farandole.explain.holdings import (
    Holdings,
    Words,
    as_sum,
    execute,
    finished_parts,
    letter,
    own_parts,
)
from farandole.explain.limits import check_number
from farandole.explain.memory_picture import memory_frames, memory_table
from farandole.explain.page import Frame, write_page
from farandole.explain.traffic import megabytes, sent_by
from farandole.parallel import Step, schedules

Scene = tuple[str, str, Step | None, Holdings, Words]
"""A phase, what happens in words, the step, what everybody has after it, and how to call it."""


def explain_sharding(path: Path, *, workers: int = 4, values: int = 1_000_000) -> None:
    """Print what each worker keeps, and how one layer is gathered and its gradient scattered.

    Args:
        path: where the page goes.
        workers: how many share a network.
        values: how many parameters it has, 4 bytes each.
    """
    check_number("workers", workers, 2, 12)
    check_number("values", values, workers, 10**12)
    scenes = list(_scenes(workers))
    kept = memory_frames(workers, values)
    frames = [*kept, *_layer_frames(scenes, workers, values)]
    write_page(path, f"Sharding: {workers} workers keep one network", frames, seconds=3)
    console = terminal.console()
    console.print("What each worker keeps, with Adam", style="bold")
    console.print(memory_table(workers, values))
    for phase, caption, step, held, words in scenes:
        console.print("\n" + phase, style="bold")
        console.print(terminal.holdings_table(held, words))
        console.print(caption if step is None else terminal.sent_line(step))


def _scenes(workers: int) -> Iterator[Scene]:
    """One layer of ZeRO 3, from its parameters in shards to its gradient in shards."""
    gather, scatter = schedules.all_gather(workers), schedules.scatter_reduce(workers)
    *_, (_, summed) = execute(scatter, own_parts(scatter))
    shards = finished_parts(summed)  # who ends with which sum keeps those parameters as well
    yield (
        "One layer: its parameters are in shards",
        "Nobody has the whole layer: worker 1 keeps chunk b, worker 2 the next one, and so on.",
        None, shards, _parameters,
    )  # fmt: skip
    for number, (step, held) in enumerate(execute(gather, shards), 1):
        words = (
            "Before a layer is used, its shards go round: each worker passes on what it got last."
        )
        yield f"All-gather, step {number} of {workers - 1}", words, step, held, _parameters
    yield (
        "Backward pass: everybody has a gradient of its own",
        "With the whole layer each worker computes, on its own rows; then it drops the "
        "parameters that are not its own. a1 is worker 1's gradient of chunk a.",
        None, own_parts(scatter), as_sum(workers),
    )  # fmt: skip
    for number, (step, held) in enumerate(execute(scatter, own_parts(scatter)), 1):
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
