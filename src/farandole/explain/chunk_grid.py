"""A step of a schedule, drawn and printed: what all workers have, and what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.explain import terminal
from farandole.explain.drawing import (
    GREEN,
    GREY,
    INK,
    PALE_BLUE,
    PALE_GREEN,
    VERMILION,
    WHITE,
    Drawing,
)
from farandole.explain.simulation import PartialSums, Words, letter, transfers
from farandole.parallel import Step

if TYPE_CHECKING:
    from rich.table import Table

WIDTH, HEIGHT = 1600.0, 640.0
_MARGIN, _TOP, _BOTTOM = 112.0, 50.0, 50.0


def draw_grid(
    held: PartialSums,
    step: Step | None,
    words: Words,
    below: Sequence[str],
    label: str,
    *,
    beside: str = "sent",
) -> Drawing:
    """Draw what all workers have after a step, and the step.

    Args:
        held: what all workers have.
        step: what was sent, always to the neighbour on the right; None: nothing yet.
        words: says what is in a chunk.
        below: what to write under each worker.
        label: what the drawing shows, for those who can't see it.
        beside: what `below` says, in a word.
    """
    drawing = Drawing(WIDTH, HEIGHT, label)
    drawing.text(4, HEIGHT - 12, beside, anchor="start")
    received = set() if step is None else {(to, chunk) for _, to, chunk in transfers(step)}
    for worker, chunks in enumerate(held):
        x, _, width, _ = _cell(held, worker, 0)
        drawing.text(x + width / 2, 34, _title(worker, len(held)), size=32, bold=True)
        size = 28 if len(held) < 9 else 23
        drawing.text(x + width / 2, HEIGHT - 12, below[worker], size=size)
        for chunk, parts in enumerate(chunks):
            _draw_chunk(
                drawing, held, worker, chunk, words(chunk, parts), (worker, chunk) in received
            )
    if step is not None:
        for sender, receiver, chunk in transfers(step):
            _draw_arrow(drawing, held, sender, receiver, chunk)
    return drawing


def _title(worker: int, workers: int) -> str:
    return f"worker {worker + 1}" if workers < 9 else f"w{worker + 1}"


def _cell(held: PartialSums, worker: int, chunk: int) -> tuple[float, float, float, float]:
    """Where a chunk of a worker is: x, y, width, height."""
    gap = 56.0 if len(held) < 7 else 40.0 if len(held) < 9 else 25.0
    width = (WIDTH - 2 * _MARGIN - gap * (len(held) - 1)) / len(held)
    row = (HEIGHT - _TOP - _BOTTOM) / len(held[0])
    space = 14.0 if len(held) < 7 else 8.0
    return _MARGIN + worker * (width + gap), _TOP + chunk * row, width, row - space


def _draw_chunk(
    drawing: Drawing, held: PartialSums, worker: int, chunk: int, words: str, arrived: bool
) -> None:
    parts = held[worker][chunk]
    finished = len(parts) == len(held)
    x, y, width, height = _cell(held, worker, chunk)
    edge = VERMILION if arrived else GREEN if finished else INK if parts else GREY
    fill = PALE_GREEN if finished else PALE_BLUE if len(parts) > 1 else WHITE
    drawing.box(
        x, y, width, height, words,
        fill=fill, edge=edge, thick=6 if arrived else 2, dashed=not parts,
        size=34, bold=finished, name=f"worker {worker + 1}, {letter(chunk)}",
    )  # fmt: skip


def _draw_arrow(
    drawing: Drawing, held: PartialSums, sender: int, receiver: int, chunk: int
) -> None:
    x, y, width, height = _cell(held, sender, chunk)
    middle, there = y + height / 2, _cell(held, receiver, chunk)[0]
    thick = 5 if len(held) < 7 else 4
    if there > x:
        drawing.arrow((x + width + 2, middle), (there - 4, middle), thick=thick)
        return
    # Round the ring: out on the right, in again on the left.
    drawing.arrow((x + width + 2, middle), (WIDTH - 6, middle), thick=thick)
    drawing.text((x + width + WIDTH) / 2, middle - 14, f"to {receiver + 1}")
    drawing.arrow((6, middle), (there - 4, middle), thick=thick)
    drawing.text(there / 2, middle - 14, f"from {sender + 1}")


def chunk_table(held: PartialSums, words: Words) -> Table:
    """What all workers have: a row a worker, a column a chunk."""
    rows = []
    for worker, chunks in enumerate(held):
        cells = [words(chunk, parts) or "–" for chunk, parts in enumerate(chunks)]
        # The chunk's name stands on top already: "a 3/8" is "3/8".
        rows.append([f"W{worker + 1}", *(cell.partition(" ")[2] or cell for cell in cells)])
    return terminal.plain_table(["", *map(letter, range(len(held[0])))], rows)


def sent_line(step: Step) -> str:
    """What a step sends, to print: "sent: a 1→2, b 2→3"."""
    return "sent: " + ", ".join(
        f"{letter(chunk)} {sender + 1}→{to + 1}" for sender, to, chunk in transfers(step)
    )
