"""farandole plan: what every strategy would cost on many workers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from farandole.commands.exit_codes import DONE
from farandole.commands.network import add_network, network_name
from farandole.commands.output import add_open, check_folder, open_in_browser
from farandole.commands.parser import CommandParser, number, whole_number, whole_numbers
from farandole.errors import InputError

_NOT_OF_PLAN = ("network", "layers", "output", "open")


def add_options(parser: CommandParser) -> None:
    """Add what `farandole.plan` takes."""
    parser.description = (
        "Price every strategy for a network on many workers, by simulation: time, efficiency,\n"
        "memory, bytes, money, failures. The time of a step is measured here, in one thread,\n"
        "unless it is given."
    )
    parser.epilog = (
        "example: farandole plan --network mlp:784,1000,10 --workers 1..1000 --link 25Gbit\n"
        "         --latency 10us --step-time 5ms --memory 16GB --output plan"
    )
    add_network(parser)
    add = parser.add_argument
    add("--workers", default="1..1024", help="such as 8, 1,2,4 or 1..10000 (1..1024)")
    add("--link", default="10Gbit", help="what a host's link carries (10Gbit)")
    add("--latency", default="10us", help="from host to host (10us)")
    add("--batch", type=whole_number, metavar="ROWS", help="rows a worker and step (64)")
    add("--step-time", metavar="TIME", help="of one worker alone, such as 120ms")
    add("--shape", type=whole_numbers, metavar="A,B", help="of a row, such as 3,224,224")
    add("--per-host", type=whole_number, default=1, metavar="N", help="workers on one link (1)")
    add("--device", default="cpu", help="cpu, or gpu: all-reduce is nccl's ring then (cpu)")
    add("--memory", metavar="SIZE", help="of a worker, such as 16GB")
    add("--price", type=number, metavar="P", help="of a worker for an hour; needs --rows")
    add("--rows", type=whole_number, metavar="N", help="rows of an epoch")
    add("--jitter", type=number, metavar="S", help="spread of a step's time (0.03)")
    add("--mtbf", metavar="TIME", help="between failures of one worker, such as 1000h")
    add("--precision", default="float32", help="float32, or mixed: 2 + 2 + 12 bytes a parameter")
    add("--no-overlap", dest="overlap", action="store_false", help="send after the backward pass")
    add("--servers", type=whole_number, default=8, metavar="N", help="where there are several (8)")
    add("--local-steps", type=whole_number, metavar="N", help="between outer steps (8)")
    add(
        "--micro-batches",
        type=whole_number,
        metavar="N",
        help="of a pipeline (4 for a stage)",
    )
    add("--output", metavar="FOLDER", help="folder for plan.csv and plan.png")
    add_open(parser, "the picture")


def run(options: argparse.Namespace) -> int:
    """Print the tables, and write them where --output says."""
    from rich.console import Console

    from farandole.planning import Plan, closing, plan, require_matplotlib, tables

    if options.output is not None:
        check_folder(options.output)
        require_matplotlib()  # before anything takes long
    elif options.open:
        raise InputError("--open needs --output: the folder for the picture that it shows.")
    given = {name: value for name, value in vars(options).items() if name not in _NOT_OF_PLAN}
    given = {name: value for name, value in given.items() if value is not None}
    found: Plan = plan(network_name(options), **given)
    console = Console()
    for table in tables(found):
        console.print(table)
    console.print(closing(found), highlight=False)
    if options.output is not None:
        picture = _write(found, Path(options.output))
        if options.open:
            open_in_browser(picture)
    return DONE


def _write(found: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    found.table.to_csv(folder / "plan.csv", index=False)
    found.plot(folder / "plan.png")
    print(f"The table: {folder / 'plan.csv'}\nThe picture: {folder / 'plan.png'}")
    return folder / "plan.png"
