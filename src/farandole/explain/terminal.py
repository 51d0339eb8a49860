"""What is printed: tables that are narrow enough for 80 columns, and need no colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from farandole.explain.holdings import Holdings, Words, letter, transfers
from farandole.parallel import Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Where to print."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without walls, as narrow as can be; the first column is on the left."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def holdings_table(held: Holdings, words: Words) -> Table:
    """What everybody has: a row a worker, a column a chunk."""
    rows = []
    for worker, chunks in enumerate(held):
        cells = [words(chunk, parts) or "–" for chunk, parts in enumerate(chunks)]
        # The chunk's name stands on top already: "a 3/8" is "3/8".
        rows.append([f"W{worker + 1}", *(cell.partition(" ")[2] or cell for cell in cells)])
    return plain_table(["", *map(letter, range(len(held[0])))], rows)


def sent_line(step: Step) -> str:
    """What a step sends, to print: "sent: a 1→2, b 2→3"."""
    return "sent: " + ", ".join(
        f"{letter(chunk)} {sender + 1}→{to + 1}" for sender, to, chunk in transfers(step)
    )
