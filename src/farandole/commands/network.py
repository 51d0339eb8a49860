"""Which network a command is for: `--network` and `--layers`, the same for plan and train."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from farandole.arguments import as_integers
from farandole.commands.parser import CommandParser, whole_numbers
from farandole.errors import InputError

_KINDS = "MLP with --layers, module:function, or a saved folder"


def add_network(parser: CommandParser) -> None:
    """Add --network and --layers."""
    parser.add_argument(
        "--network",
        required=True,
        help=f"{_KINDS}; mlp:784,100,10 in short",
    )
    parser.add_argument(
        "--layers",
        type=whole_numbers,
        default=None,
        metavar="A,B",
        help="of an MLP: its widths, from features to outputs",
    )


def network_name(options: argparse.Namespace) -> str:
    """What `farandole.plan` takes: the network with its layers in one word.

    >>> network_name(argparse.Namespace(network="MLP", layers=(4, 8, 3)))
    'mlp:4,8,3'
    """
    # module:function may be a file of the folder where one stands.
    if "" not in sys.path:
        sys.path.insert(0, "")
    name: str = options.network
    is_mlp = name.lower() == "mlp"
    if options.layers is not None and not is_mlp:
        raise InputError(f"--layers are for --network MLP. Received: --network {name}")
    if is_mlp:
        return "mlp:" + ",".join(map(str, _widths(options.layers)))
    if ":" not in name and not Path(name).is_dir():
        raise InputError(f"There is no folder {name!r}. --network can be {_KINDS}.")
    return name


def _widths(layers: tuple[int, ...] | None) -> tuple[int, ...]:
    if layers is None:
        raise InputError("An MLP needs its widths: --layers 784,100,10")
    return as_integers("layers", layers, 2)


def find_network(options: argparse.Namespace) -> Any:
    """The network itself, with its signature where that is known."""
    from farandole.planning import find_network as find

    return find(network_name(options))
