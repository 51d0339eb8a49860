"""farandole train: a network trained on Parquet files and saved, without Spark."""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from farandole.arguments import ALL_BUT_HEAD
from farandole.commands import exit_codes
from farandole.commands.network import add_network, find_network
from farandole.commands.output import check_new
from farandole.commands.parser import (
    CommandParser,
    names,
    number,
    numbers,
    pairs,
    whole_number,
)
from farandole.errors import ArtifactError, InputError
from farandole.training import INTERRUPTED, RECIPE_DOCS, Recipe

if TYPE_CHECKING:
    from farandole.api import TrainingResult

_TYPED = {
    "loss": "cross_entropy, mse …; or for each head, such as digit=cross_entropy,size=mse",
    "loss_weights": "of heads, such as size=0.1",
    "task": "classification, binary, multilabel, regression; or for each head",
    "optimizer": "adam, sgd, lbfgs …",
    "optimizer_options": "such as momentum=0.9,nesterov=true",
    "seed": "of first weights, shuffling, validation split and dropout",
    "metrics": "such as accuracy; by default what suits the loss",
    "schedule": "of the learning rate: cosine, linear …",
    "learning_rates": "of layers, such as features=0.0001",
}
"""What is said of those fields of a `Recipe` that take other values in Python than in a shell."""


def add_options(parser: CommandParser) -> None:
    """Add what `farandole.train` takes, and the fields of a `Recipe`."""
    parser.description = (
        "Train a network on Parquet files, on this machine, and save it as a folder that\n"
        "farandole predict, farandole.load and farandole.predict_udf read."
    )
    parser.epilog = (
        "example: farandole train --network MLP --layers 64,32,10 --data train.parquet\n"
        "         --label digit --epochs 5 --validation 0.2 --output net"
    )
    add_network(parser)
    add = parser.add_argument
    add("--data", required=True, metavar="PATH", help="a Parquet file, or a folder of them")
    add("--output", required=True, metavar="FOLDER", help="for the network")
    add("--overwrite", action="store_true", help="replace an output that exists")
    add("--quiet", action="store_true", help="show no progress")
    add("--allow-pickle", action="store_true", help="pickle a network that can't be described")
    parser.argument_default = argparse.SUPPRESS  # train's own defaults hold
    add("--features", type=names, metavar="A,B", help="columns to feed (features, or all others)")
    add("--label", type=names, metavar="A,B", help="columns to learn (label)")
    add("--no-label", dest="label", action="store_const", const=None, help="learn the features")
    add("--weight", metavar="NAME", help="a column of row weights")
    add("--validation", type=_fraction_or_name, metavar="F", help="such as 0.2, or a column")
    add(
        "--num-workers", "--workers", type=whole_number, metavar="N",
        help="processes that share each batch (1)",
    )  # fmt: skip
    add("--strategy", metavar="NAME", help="how they do: allreduce, ring, auto … (allreduce)")
    add("--initial-weights", metavar="FOLDER", help="a saved network to start from")
    add("--checkpoint-dir", metavar="FOLDER", help="for checkpoints; the same again goes on there")
    add("--checkpoint-steps", type=whole_number, metavar="N", help="updates between checkpoints")
    add("--checkpoint-minutes", type=number, metavar="X", help="minutes between checkpoints (5)")
    add("--keep-last", type=whole_number, metavar="N", help="how many checkpoints are kept (2)")
    add("--keep-best", type=whole_number, metavar="N", help="those of so many best epochs too (0)")
    add("--max-restarts", type=whole_number, metavar="N", help="after workers were lost (3)")
    add("--timeout", type=number, metavar="S", help="seconds that a worker waits for others")
    add("--heartbeat", type=number, metavar="S", help="seconds until a stuck worker is given up")
    add("--encrypt", action="store_true", help="encrypt what workers send each other")
    add("--device", metavar="NAME", help="auto, cpu, cuda (a GPU for each worker) … (auto)")
    add("--cpus-per-worker", type=whole_number, metavar="N", help="cores of each worker")
    add("--trace", metavar="FILE", help="for what every worker did, for explain --trace")
    for name, hint in get_type_hints(Recipe).items():
        add(f"--{name.replace('_', '-')}", help=_help(name), **_kind(hint))


def run(options: argparse.Namespace) -> int:
    """Train, print the history, save, and say where."""
    import torch

    from farandole.api import train

    given = vars(options)
    output, data = check_new(given.pop("output"), overwrite=options.overwrite), given.pop("data")
    _check_replaceable(output)
    _check_there(data, "to train on")
    if "initial_weights" in given:
        _check_there(given["initial_weights"], "to take weights from")
    how_to_save = {name: given.pop(name) for name in ("overwrite", "allow_pickle")}
    torch.manual_seed(given.get("seed", Recipe().seed))  # a new network's first weights
    network = find_network(options).network
    own = {name: given.pop(name) for name in ("network", "layers", "quiet")}
    result = train(network, data, progress=not own["quiet"], **given)
    _print_history(result)
    _save(result, output, how_to_save)
    print(f"The network: {output}")
    print(f"Next: farandole predict --model {output} --input FILE --output FILE")
    return exit_codes.INTERRUPTED if result.reason == INTERRUPTED else exit_codes.DONE


def _check_replaceable(output: Path) -> None:
    """Let --overwrite replace a saved network or nothing, never a folder of something else."""
    if not output.exists() or (output / "network.json").exists():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise InputError(f"{str(output)!r} holds no network, so it stays. Choose another --output.")


def _check_there(path: str, purpose: str) -> None:
    if not Path(path).exists():
        raise InputError(f"There is no file or folder {path!r} {purpose}.")


def _help(name: str) -> str:
    """What a field of a `Recipe` is, and its default.

    >>> _help("epochs"), _help("shuffle")
    ('passes over the data (1)', 'whether every epoch has its own order; else ... is kept (yes)')
    """
    about, default = _TYPED.get(name, RECIPE_DOCS[name]), getattr(Recipe(), name)
    if default is None or default == {}:
        return about
    if isinstance(default, bool):
        return f"{about} ({'yes' if default else 'no'})"
    return f"{about} ({default:g})" if isinstance(default, float) else f"{about} ({default})"


def _kind(hint: Any) -> dict[str, Any]:
    """How an option is read, by the type of a recipe's field."""
    kinds = set(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else {hint}
    kinds -= {types.NoneType}
    if kinds == {bool}:
        return {"action": argparse.BooleanOptionalAction}
    read: dict[Any, tuple[Callable[[str], Any], str]] = {
        int: (whole_number, "N"),
        float: (number, "X"),
        Sequence[float]: (numbers, "X,Y"),
        Sequence[str]: (_layers, "A,B"),
        Sequence[Any]: (names, "A,B"),
        Mapping[str, Any]: (pairs, "A=X"),
        Mapping[str, float]: (pairs, "A=X"),
    }
    plain = (_name_or_pairs, "NAME") if kinds == {Any} else (str, "NAME")
    convert, metavar = next((read[kind] for kind in read if kind in kinds), plain)
    return {"type": convert, "metavar": metavar}


def _name_or_pairs(text: str) -> Any:
    return pairs(text) if "=" in text else text


def _layers(text: str) -> str | list[str]:
    return text if text == ALL_BUT_HEAD else names(text)


def _fraction_or_name(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _print_history(result: TrainingResult) -> None:
    rows = result.history
    if len(rows) > 20:
        print(f"The last 10 of {len(rows)} epochs:")
    shown = rows if len(rows) <= 20 else rows.tail(10)
    print(shown.to_string(index=False, float_format="{:.4g}".format))
    print(f"{result.reason}, in {result.seconds['total']:.1f} s")


def _save(result: TrainingResult, output: Path, options: dict[str, Any]) -> None:
    """Save the network; if only its weights can be, save those before saying so."""
    from safetensors.torch import save_file

    from farandole.artifact import untied_state_dict

    try:
        result.save(output, **options)
    except ArtifactError as error:
        weights = output.with_name(f"{output.name}.safetensors")
        save_file(untied_state_dict(result.network), weights)
        raise ArtifactError(f"{error} The weights alone are in {str(weights)!r}.") from error
