"""explain ring: how workers in a ring sum what they have, in two rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from farandole.explain import terminal
from farandole.explain.chunk_grid import chunk_table, draw_grid, sent_line
from farandole.explain.page import Frame, check_drawable, write_page
from farandole.explain.simulation import (
    PartialSums,
    as_sum,
    letter,
    megabytes,
    own_parts,
    sent_by,
    simulate,
)
from farandole.parallel import Schedule, Step, schedules


def explain_ring(path: Path, *, workers: int = 5, values: int = 1_000_000) -> None:
    """Print the steps of a ring all-reduce, and write a page of them.

    Args:
        path: where the page goes.
        workers: how many there are.
        values: how many numbers of 4 bytes they sum; they are cut into a chunk a worker.
    """
    check_drawable("workers", workers, 2, 12)
    check_drawable("values", values, workers, 10**12)
    schedule = schedules.ring(workers)
    history = [(None, own_parts(schedule)), *simulate(schedule, own_parts(schedule))]
    frames = ring_frames(schedule, history, values)
    write_page(path, f"Ring all-reduce: {workers} workers sum {values:,} values", frames)
    console = terminal.console()
    for frame, (step, held) in zip(frames, history, strict=True):
        console.print(frame.phase, style="bold")
        console.print(chunk_table(held, as_sum(workers)))
        console.print("" if step is None else sent_line(step) + "\n")
    console.print(frames[-1].caption)


def ring_frames(
    schedule: Schedule, history: list[tuple[Step | None, PartialSums]], values: int
) -> list[Frame]:
    """Draw what all workers have at first and after each step."""
    frames = []
    sent = np.zeros(schedule.workers, np.int64)
    for number, (step, held) in enumerate(history):
        sent += 0 if step is None else sent_by(schedule, step, values)
        phase = _phase(number, schedule.workers)
        below = [megabytes(count) for count in sent.tolist()]
        drawing = draw_grid(held, step, as_sum(schedule.workers), below, phase)
        frames.append(Frame(phase, drawing, _caption(number, held, values, sent.tolist())))
    return frames


def _phase(number: int, workers: int) -> str:
    turns = workers - 1
    if number == 0:
        return "Start"
    if number <= turns:
        return f"Scatter-reduce, step {number} of {turns}"
    return f"All-gather, step {number - turns} of {turns}"


def _caption(number: int, held: PartialSums, values: int, sent: list[int]) -> str:
    workers = len(held)
    if number == 0:
        short = f"a 3/{workers} is a chunk a that has 3 workers' parts in it"
        name = "a1 is worker 1's chunk a" if workers <= 5 else short
        return (
            f"Each of {workers} workers has its own gradient of {values:,} values, cut into "
            f"{workers} chunks: {name}. All workers need the sum."
        )
    if number < workers - 1:
        return (
            "Each worker sends one chunk to its right neighbour and adds what comes from the "
            "left. The last one's neighbour is the first."
        )
    if number == workers - 1:
        return (
            f"Every chunk is finished somewhere: {_finished(held)}. No worker had to send it all."
        )
    if number < 2 * workers - 2:
        return "The finished chunks go round: each worker passes on what it got last."
    return (
        f"All workers have the whole sum. Each worker has sent 2(N−1)·K/N values: here "
        f"{_range(sent)} of K = {values:,}, less than 2K however many workers there are."
    )


def _finished(held: PartialSums) -> str:
    """Who has which whole sum: "worker 1 has b, worker 2 has c"."""
    return ", ".join(
        f"worker {worker + 1} has {letter(chunk)}"
        for worker, chunks in enumerate(held)
        for chunk, parts in enumerate(chunks)
        if len(parts) == len(held)
    )


def _range(sent: list[int]) -> str:
    """One number; two, if chunks are not all of one size."""
    least, most = min(sent), max(sent)
    size = megabytes(most)
    return f"{most:,} ({size})" if least == most else f"{least:,} to {most:,} ({size})"
