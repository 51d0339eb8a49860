"""What is printed: tables that are narrow enough for 80 columns, and need no colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
