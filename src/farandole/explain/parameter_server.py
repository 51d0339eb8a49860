"""explain parameter-server: everybody pushes, the server adds, everybody pulls."""

from __future__ import annotations

from pathlib import Path

from farandole.explain import terminal
from farandole.explain.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE_BLUE,
    PALE_GREEN,
    VERMILION,
    WHITE,
    Drawing,
)
from farandole.explain.holdings import Holdings, as_sum, execute, letter, own_parts, transfers
from farandole.explain.limits import check_number
from farandole.explain.page import Frame, write_page
from farandole.explain.server_traffic import MOST, traffic_frame, traffic_table
from farandole.explain.traffic import megabytes
from farandole.parallel import Schedule, Step, schedules

_WIDTH, _HEIGHT = 1600.0, 640.0


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
    check_number("workers", workers, 2, MOST)
    check_number("servers", servers, 1, min(4, workers))
    check_number("values", values, servers, 10**12)
    schedule = schedules.parameter_server(workers, servers)
    history = [(None, own_parts(schedule)), *execute(schedule, own_parts(schedule))]
    frames = [_frame(schedule, step, held, values) for step, held in history]
    frames.append(traffic_frame(servers, values))
    title = f"Parameter server: {workers} workers, {servers} server{'s' if servers > 1 else ''}"
    write_page(path, title, frames, seconds=4)
    console = terminal.console()
    for frame, (_, held) in zip(frames, history, strict=False):
        console.print(frame.phase, style="bold")
        console.print(terminal.holdings_table(held, as_sum(workers)))
        console.print(frame.caption + "\n")
    console.print("What the busiest worker sends, a step", style="bold")
    console.print(traffic_table(servers, values))
    console.print(frames[-1].caption)


def _phase(schedule: Schedule, step: Step | None) -> str:
    if step is None:
        return "Start"
    server = "the server" if schedule.chunks == 1 else "each server"
    return f"Push: everybody to {server}" if step.adds else f"Pull: {server} to everybody"


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
    return f"{count} transfers of {each} leave {server}, through one link. Everybody has the sum."


def _names(servers: int) -> str:
    return ", ".join(f"chunk {letter(s)} for server {s + 1}" for s in range(servers))


def _frame(schedule: Schedule, step: Step | None, held: Holdings, values: int) -> Frame:
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


def _draw_server(drawing: Drawing, schedule: Schedule, held: Holdings, server: int) -> None:
    parts = held[server][server]
    x, width = _server_x(schedule, server), min(520.0, _WIDTH / schedule.chunks - 30)
    drawing.text(x, 48, f"server {server + 1} (on worker {server + 1})", size=28, bold=True)
    finished = len(parts) == schedule.workers
    drawing.box(
        x - width / 2, 70, width, 140, as_sum(schedule.workers)(server, parts),
        fill=PALE_GREEN if finished else WHITE, edge=GREEN if finished else INK, thick=4, size=38,
        bold=finished, name=f"server {server + 1}, {letter(server)}",
    )  # fmt: skip


def _draw_worker(drawing: Drawing, schedule: Schedule, held: Holdings, worker: int) -> None:
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
