"""What a parameter server sends, the more workers the more; and a worker of a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.explain import terminal
from farandole.explain.chart import Chart
from farandole.explain.drawing import BLUE, INK, VERMILION, Drawing
from farandole.explain.page import Frame
from farandole.explain.traffic import BYTES, busiest, megabytes
from farandole.parallel import schedules

if TYPE_CHECKING:
    from rich.table import Table

MOST = 12  # workers


def traffic(servers: int, values: int) -> list[tuple[int, int, int]]:
    """For each number of workers: the values that the busiest sends, with servers and in a ring.

    >>> traffic(servers=1, values=120)[:2]
    [(2, 120, 120), (3, 240, 160)]
    """
    found = []
    for workers in range(max(2, servers), MOST + 1):
        through_server = busiest(schedules.parameter_server(workers, servers), values)
        found.append((workers, through_server, busiest(schedules.ring(workers), values)))
    return found


def traffic_frame(servers: int, values: int) -> Frame:
    """Draw it."""
    counts = traffic(servers, values)
    top = counts[-1][1] * 1.12
    drawing = Drawing(1600, 640, "What the busiest worker sends, by the number of workers")
    chart = Chart(drawing, (190, 1540), (540, 40), (counts[0][0], MOST), (0, top))
    chart.axes(
        [(workers, str(workers)) for workers, _, _ in counts],
        [(mark, megabytes(mark)) for mark in round_numbers(counts[-1][1])],
    )
    drawing.text(865, 624, "workers", size=28)
    server = [(float(workers), float(count)) for workers, count, _ in counts]
    ring_ = [(float(workers), float(count)) for workers, _, count in counts]
    chart.curve([(counts[0][0], 2 * values), (MOST, 2 * values)], INK, thick=2)
    chart.note(MOST, 2 * values, f"2K = {megabytes(2 * values)}")
    chart.curve(server, VERMILION, thick=7)
    chart.curve(ring_, BLUE, thick=7, dashed=True)
    chart.note(MOST - 0.9, counts[-1][1], _servers(servers), VERMILION)
    chart.note(MOST, values / 4, "ring", BLUE)  # below its line
    return Frame("What the busiest worker sends, a step", drawing, _caption(servers, values))


def round_numbers(most: int) -> list[int]:
    """Values whose sizes in bytes are round: up to six, from 0 on.

    >>> [megabytes(number) for number in round_numbers(22_000_000)]
    ['0 B', '20 MB', '40 MB', '60 MB', '80 MB']
    """
    size = most * BYTES
    step = next(s for e in range(20) for s in (10**e, 2 * 10**e, 5 * 10**e) if size / s < 6)
    return [number // BYTES for number in range(0, size + 1, step)]


def traffic_table(servers: int, values: int) -> Table:
    """The same numbers, to print."""
    rows = [
        [str(workers), megabytes(server), megabytes(ring)]
        for workers, server, ring in traffic(servers, values)
    ]
    return terminal.plain_table(["workers", f"  {_servers(servers)}", "      ring"], rows)


def _servers(servers: int) -> str:
    return "server" if servers == 1 else f"{servers} servers"


def _caption(servers: int, values: int) -> str:
    split = "" if servers == 1 else f" {servers} servers share it, and it grows all the same."
    return (
        "A server sends (and receives) more with every worker: its link sets the pace."
        f"{split} In a ring nobody sends more than 2K, twice the gradient of {megabytes(values)}, "
        "however many they are."
    )
