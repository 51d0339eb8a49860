"""farandole predict: a network applied to files or photos, without Spark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from farandole.commands.exit_codes import DONE
from farandole.commands.output import check_new
from farandole.commands.parser import CommandParser, auto_or_number, names, whole_number
from farandole.errors import InputError


def add_options(parser: CommandParser) -> None:
    """Add what `farandole.predict` takes."""
    parser.description = (
        "Apply a network to the rows of files, or to photos, and write a Parquet file.\n"
        "Rows come out in their order. The file appears when it is complete, or not at all.\n"
        "Photos that are broken become rows with an error."
    )
    parser.epilog = (
        "example: farandole predict --model net/ --input photos/ --output out.parquet\n"
        "         --answer topk --k 3 --labels names.txt"
    )
    add = parser.add_argument
    add("--model", required=True, help="a saved folder, or a .pt2, TorchScript or .onnx file")
    add("--input", required=True, help="Parquet, CSV, JSON lines, Arrow or photos: file or folder")
    add("--output", required=True, metavar="FILE", help="the Parquet file to write")
    add("--features", type=names, metavar="A,B", help="columns, if not the network's own")
    add("--keep", default="all", metavar="A,B", help='columns to write as well: "all", "none", …')
    add("--column", default="prediction", metavar="NAME", help="the column of answers")
    kinds = "prediction, class, probability, raw, topk or all"
    add("--answer", default="prediction", metavar="KIND", help=kinds)
    add("--k", type=whole_number, default=5, metavar="N", help="how many classes topk gives (5)")
    add("--labels", metavar="FILE", help="names of classes: a line each, or a list in a .json")
    add("--nulls", default="error", help="what null or NaN leads to: error, null; nan: it goes on")
    add("--head", help="of a network without a signature: softmax, sigmoid, identity …")
    add(
        "--batch-size", type=auto_or_number, default="auto", metavar="N", help="rows at once (auto)"
    )
    add("--precision", help="bfloat16 or int8, if not the network's own")
    add(
        "--num-workers", "--workers", type=auto_or_number, default="auto", metavar="N",
        help="threads (one a core)",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="replace an output that exists")
    add("--quiet", action="store_true", help="show no progress")
    add("--allow-pickle", action="store_true", help="load a pickle or TorchScript: runs code")


def run(options: argparse.Namespace) -> int:
    """Predict, and say what was written."""
    from farandole.inference import predict

    check_new(options.output, overwrite=options.overwrite)
    done = predict(
        options.model,
        options.input,
        options.output,
        features=options.features or None,
        keep="all" if options.keep == "all" else names(options.keep),
        column=options.column,
        answer=options.answer,
        k=options.k,
        labels=read_labels(options.labels) if options.labels else (),
        nulls=options.nulls,
        head=options.head,
        batch_size=options.batch_size,
        precision=options.precision,
        num_workers=options.num_workers,
        overwrite=options.overwrite,
        progress=not options.quiet,
        allow_pickle=options.allow_pickle,
    )
    print(done)
    return DONE


def read_labels(path: str) -> list[str]:
    """Names of classes, from lines or from a list in a .json."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = json.loads(text) if path.endswith(".json") else text.splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"The labels can't be read: {error}") from error
    if not isinstance(found, list):
        raise InputError(f"{path!r} must hold a list of labels, between [ and ].")
    return [str(label) for label in found]
