"""The command `farandole plan`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_plan(commands: Any) -> None:
    """Add the command to a parser."""
    plan = commands.add_parser(
        "plan",
        help="price every strategy on many workers, by simulation",
        description="Price every strategy for a network on many workers, by simulation: time, "
        "efficiency, memory, bytes, money, failures. The time of a step is measured here, in one "
        "thread, unless it is given.",
        epilog="example: farandole plan --network mlp:784,1000,10 --workers 1..1000 --link 25Gbit "
        "--latency 10us --step-time 5ms --memory 16GB --output plan",
    )
    add = plan.add_argument
    add("--network", required=True, help="a saved folder, mlp:784,100,10, or module:function")
    add("--workers", default="1..1024", help="such as 8, 1,2,4 or 1..10000 (1..1024)")
    add("--link", default="10Gbit", help="what a host's link carries (10Gbit)")
    add("--latency", default="10us", help="from host to host (10us)")
    add("--batch", type=int, metavar="ROWS", help="rows a worker and step (64)")
    add("--step-time", metavar="TIME", help="of one worker alone, such as 120ms")
    add("--shape", type=_shape, metavar="A,B", help="of a row, such as 3,224,224")
    add("--per-host", type=int, default=1, metavar="N", help="workers that share a link (1)")
    add("--device", default="cpu", help="cpu, or gpu: all-reduce is nccl's ring then (cpu)")
    add("--memory", metavar="SIZE", help="of a worker, such as 16GB")
    add("--price", type=float, metavar="P", help="of a worker for an hour; needs --rows")
    add("--rows", type=int, metavar="N", help="rows of an epoch")
    add("--jitter", type=float, default=None, metavar="S", help="spread of a step's time (0.03)")
    add("--mtbf", metavar="TIME", help="between failures of one worker, such as 1000h")
    add("--precision", default="float32", help="float32, or mixed: 2 + 2 + 12 bytes a parameter")
    add("--no-overlap", dest="overlap", action="store_false", help="send after the backward pass")
    add("--servers", type=int, default=8, metavar="N", help="where there are several (8)")
    add("--local-steps", type=int, metavar="N", help="of local SGD between outer steps (8)")
    add("--micro-batches", type=int, metavar="N", help="of a pipeline (four for each stage)")
    add("--output", metavar="FOLDER", help="folder for plan.csv and plan.png")
    plan.set_defaults(command=_plan)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be the sizes of one row, such as 3,224,224. Received: {text!r}"
        ) from None


def _plan(options: argparse.Namespace) -> int:
    from rich.console import Console

    from farandole.planning import Plan, closing, plan, require_matplotlib, tables

    if options.output is not None:
        require_matplotlib()  # before anything takes long
    sys.path.insert(0, "")  # module:function may be a file of the folder where one stands
    kept = {k: v for k, v in vars(options).items() if k not in ("command", "output", "network")}
    found: Plan = plan(options.network, **{k: v for k, v in kept.items() if v is not None})
    console = Console()
    for table in tables(found):
        console.print(table)
    console.print(closing(found), highlight=False)
    if options.output is not None:
        _write(found, Path(options.output))
    return 0


def _write(found: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found.table.to_csv(folder / "plan.csv", index=False)
    found.plot(folder / "plan.png")
    print(f"The table: {folder / 'plan.csv'}\nThe picture: {folder / 'plan.png'}")
