"""explain parameter-server: all workers push, the server adds, all workers pull."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from farandole.explain import terminal
from farandole.explain.chunk_grid import chunk_table
from farandole.explain.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE_BLUE,
    PALE_GREEN,
    VERMILION,
    WHITE,
    Chart,
    Drawing,
)
from farandole.explain.page import Frame, check_drawable, write_page
from farandole.explain.simulation import (
    BYTES,
    PartialSums,
    as_sum,
    busiest,
    letter,
    megabytes,
    own_parts,
    simulate,
    transfers,
)
from farandole.parallel import Schedule, Step, schedules

if TYPE_CHECKING:
    from rich.table import Table


_WIDTH, _HEIGHT = 1600.0, 640.0
_MOST_WORKERS = 12


def explain_parameter_server(
    path: Path, *, workers: int = 5, servers: int = 1, values: int = 1_000_000
) -> None:
    """Print how a parameter server sums, and what goes through its link, and write a page.

    Args:
        path: where the page goes.
        workers: how many there are.
        servers: how many of them are servers too; the values are split among these.
        values: how many numbers of 4 bytes they sum.
    """
    check_drawable("workers", workers, 2, _MOST_WORKERS)
    check_drawable("servers", servers, 1, min(4, workers))
    check_drawable("values", values, servers, 10**12)
    schedule = schedules.parameter_server(workers, servers)
    history = [(None, own_parts(schedule)), *simulate(schedule, own_parts(schedule))]
    frames = [_frame(schedule, step, held, values) for step, held in history]
    frames.append(traffic_frame(servers, values))
    title = f"Parameter server: {workers} workers, {servers} server{'s' if servers > 1 else ''}"
    write_page(path, title, frames, seconds=4)
    console = terminal.console()
    for frame, (_, held) in zip(frames, history, strict=False):
        console.print(frame.phase, style="bold")
        console.print(chunk_table(held, as_sum(workers)))
        console.print(frame.caption + "\n")
    console.print("What the busiest worker sends, a step", style="bold")
    console.print(traffic_table(servers, values))
    console.print(frames[-1].caption)


def _phase(schedule: Schedule, step: Step | None) -> str:
    if step is None:
        return "Start"
    server = "the server" if schedule.chunks == 1 else "each server"
    return f"Push: all workers to {server}" if step.adds else f"Pull: {server} to all workers"


def _caption(schedule: Schedule, step: Step | None, values: int) -> str:
    servers = schedule.chunks
    if step is None:
        split = "" if servers == 1 else f" They are split: {_names(servers)}."
        return (
            f"Every worker has its own gradient of {values:,} values ({megabytes(values)})."
            f"{split} A server is one of the workers."
        )
    each = megabytes(values // servers)
    count = schedule.workers - 1
    server = "the server" if servers == 1 else "each server"
    if step.adds:
        return (
            f"{count} transfers of {each} come in at {server}, through one link. It adds them up."
        )
    return (
        f"{count} transfers of {each} leave {server}, through one link. All workers have the sum."
    )


def _names(servers: int) -> str:
    return ", ".join(f"chunk {letter(s)} for server {s + 1}" for s in range(servers))


def _frame(schedule: Schedule, step: Step | None, held: PartialSums, values: int) -> Frame:
    drawing = Drawing(_WIDTH, _HEIGHT, _phase(schedule, step))
    if step is not None:
        for sender, receiver, chunk in transfers(step):
            client = sender if step.adds else receiver
            at_server = (_server_x(schedule, chunk) + _spread(schedule, client), 214.0)
            at_worker = (
                _worker_x(schedule, client) + 14 * (chunk - (schedule.chunks - 1) / 2),
                396.0,
            )
            ends = (at_worker, at_server) if step.adds else (at_server, at_worker)
            drawing.arrow(*ends, colour=(VERMILION, BLUE, GREEN, INK)[chunk], thick=4)
    for server in range(schedule.chunks):
        x = _server_x(schedule, server) + _spread(schedule, server)
        same = [(x, 212.0), (_worker_x(schedule, server), 398.0)]
        drawing.line(same, colour=GREY, dashed=True)  # they are one process
        _draw_server(drawing, schedule, held, server)
    for worker in range(schedule.workers):
        _draw_worker(drawing, schedule, held, worker)
    return Frame(_phase(schedule, step), drawing, _caption(schedule, step, values))


def _worker_x(schedule: Schedule, worker: int) -> float:
    return _WIDTH * (worker + 0.5) / schedule.workers


def _server_x(schedule: Schedule, server: int) -> float:
    return _WIDTH * (server + 0.5) / schedule.chunks


def _spread(schedule: Schedule, client: int) -> float:
    """Arrows end side by side at a server, not all in one point."""
    return (client - (schedule.workers - 1) / 2) * 22


def _draw_server(drawing: Drawing, schedule: Schedule, held: PartialSums, server: int) -> None:
    parts = held[server][server]
    x, width = _server_x(schedule, server), min(520.0, _WIDTH / schedule.chunks - 30)
    drawing.text(x, 48, f"server {server + 1} (on worker {server + 1})", size=28, bold=True)
    finished = len(parts) == schedule.workers
    drawing.box(
        x - width / 2, 70, width, 140, as_sum(schedule.workers)(server, parts),
        fill=PALE_GREEN if finished else WHITE, edge=GREEN if finished else INK, thick=4, size=38,
        bold=finished, name=f"server {server + 1}, {letter(server)}",
    )  # fmt: skip


def _draw_worker(drawing: Drawing, schedule: Schedule, held: PartialSums, worker: int) -> None:
    width = min(300.0, _WIDTH / schedule.workers - 26)
    x, height = _worker_x(schedule, worker) - width / 2, 180.0 / schedule.chunks
    name = f"worker {worker + 1}" if schedule.workers < 9 else f"w{worker + 1}"
    drawing.text(x + width / 2, 628, name, size=28, bold=True)
    for chunk, parts in enumerate(held[worker]):
        finished = len(parts) == schedule.workers
        drawing.box(
            x, 400 + chunk * height, width, height - 6, as_sum(schedule.workers)(chunk, parts),
            fill=PALE_GREEN if finished else PALE_BLUE if len(parts) > 1 else WHITE,
            edge=GREEN if finished else INK,
            size=34, bold=finished, name=f"worker {worker + 1}, {letter(chunk)}",
        )  # fmt: skip


def traffic(servers: int, values: int) -> list[tuple[int, int, int]]:
    """For each number of workers: the values that the busiest sends, with servers and in a ring.

    >>> traffic(servers=1, values=120)[:2]
    [(2, 120, 120), (3, 240, 160)]
    """
    found = []
    for workers in range(max(2, servers), _MOST_WORKERS + 1):
        through_server = busiest(schedules.parameter_server(workers, servers), values)
        found.append((workers, through_server, busiest(schedules.ring(workers), values)))
    return found


def traffic_frame(servers: int, values: int) -> Frame:
    """Draw it."""
    counts = traffic(servers, values)
    top = counts[-1][1] * 1.12
    drawing = Drawing(1600, 640, "What the busiest worker sends, by the number of workers")
    chart = Chart(drawing, (190, 1540), (540, 40), (counts[0][0], _MOST_WORKERS), (0, top))
    chart.axes(
        [(workers, str(workers)) for workers, _, _ in counts],
        [(mark, megabytes(mark)) for mark in round_numbers(counts[-1][1])],
    )
    drawing.text(865, 624, "workers", size=28)
    server = [(float(workers), float(count)) for workers, count, _ in counts]
    ring_ = [(float(workers), float(count)) for workers, _, count in counts]
    chart.curve([(counts[0][0], 2 * values), (_MOST_WORKERS, 2 * values)], INK, thick=2)
    chart.note(_MOST_WORKERS, 2 * values, f"2K = {megabytes(2 * values)}")
    chart.curve(server, VERMILION, thick=7)
    chart.curve(ring_, BLUE, thick=7, dashed=True)
    chart.note(_MOST_WORKERS - 0.9, counts[-1][1], _servers(servers), VERMILION)
    chart.note(_MOST_WORKERS, values / 4, "ring", BLUE)  # below its line
    return Frame(
        "What the busiest worker sends, a step", drawing, _traffic_caption(servers, values)
    )


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


def _traffic_caption(servers: int, values: int) -> str:
    split = "" if servers == 1 else f" {servers} servers share it, and it grows all the same."
    return (
        "A server sends (and receives) more with every worker: its link sets the pace."
        f"{split} In a ring no worker sends more than 2K, twice the gradient of "
        f"{megabytes(values)}, however many they are."
    )
