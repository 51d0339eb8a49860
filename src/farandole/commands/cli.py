"""The command line: `farandole doctor`, `demo`, `explain`, `predict` and `plan`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole import __version__
from farandole.errors import FarandoleError, InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0 when all is well."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except FarandoleError as error:
        print(f"farandole: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farandole", description="Neural networks where the data already is: in Spark."
    )
    parser.add_argument("--version", action="version", version=f"farandole {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="check this machine, Spark and its workers")
    where = doctor.add_mutually_exclusive_group()
    where.add_argument("--master", help="a Spark master to check, such as spark://host:7077")
    where.add_argument("--remote", help="a Spark Connect server to check, such as sc://host")
    where.add_argument("--no-spark", action="store_true", help="check only this machine")
    doctor.set_defaults(command=_doctor)

    demo = commands.add_parser("demo", help="train on Iris and digits, in half a minute")
    demo.add_argument("--output", default="farandole-demo", help="folder for model and picture")
    demo.add_argument("--workers", type=int, default=2, help="how many workers train together")
    demo.set_defaults(command=_demo)

    _add_explain(commands)
    _add_predict(commands)
    _add_plan(commands)
    return parser


def _add_explain(commands: Any) -> None:
    explain = commands.add_parser(
        "explain",
        help="show a ring, a pipeline, backpropagation … step by step",
        description="Print a topic, and write a page to step through.",
        epilog="example: farandole explain ring --workers 5",
        argument_default=argparse.SUPPRESS,  # a topic is told only what was asked for
    )
    add = explain.add_argument
    add("topic", nargs="?", default=None, metavar="TOPIC", help="without one: all there are")
    add("--output", default="farandole-explain", help="folder for the page")
    add("--workers", type=int, metavar="N", help="how many there are")
    add("--servers", type=int, metavar="N", help="how many of them are parameter servers")
    add("--values", type=int, metavar="K", help="how many numbers are summed or kept")
    add("--stages", type=int, metavar="N", help="how many parts a pipeline has")
    add("--micro-batches", type=int, metavar="N", help="how many parts a batch is cut into")
    add("--schedule", metavar="NAME", help="of a pipeline: gpipe, 1f1b or naive")
    add("--x", metavar="A,B", help="backprop: features (--x=-1,2 if the first is negative)")
    add("--beta", metavar="A,B", help="backprop: weights")
    add("--y", metavar="A", help="backprop: what should come out")
    add("--relu", action=argparse.BooleanOptionalAction, help="backprop: with a ReLU or without")
    add("--trace", metavar="FILE", help="draw a real run: what train(trace=FILE) has written")
    add("--steps", metavar="A-B", help="which steps of the trace")
    explain.set_defaults(command=_explain)


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser(
        "predict",
        help="apply a network to the rows of files, or to photos; no Spark",
        description="Apply a network to the rows of files, or to photos, and write a Parquet file. "
        "Rows come out in their order. The file appears when it is complete, or not at all. "
        "Photos that are broken become rows with an error.",
        epilog="example: farandole predict --model net/ --input photos/ --output out.parquet "
        "--answer topk --k 3 --labels names.txt",
    )
    add = predict.add_argument
    add("--model", required=True, help="a saved folder, or a .pt2, TorchScript or .onnx file")
    add("--input", required=True, help="Parquet, CSV, JSON lines, Arrow or photos: file or folder")
    add("--output", required=True, help="the Parquet file to write")
    add("--features", metavar="A,B", help="columns to predict from, if not the network's own")
    add("--keep", default="all", metavar="A,B", help='columns to write as well: "all", "none", …')
    add("--column", default="prediction", metavar="NAME", help="the column of answers")
    kinds = "prediction, class, probability, raw, topk or all"
    add("--answer", default="prediction", metavar="KIND", help=kinds)
    add("--k", type=int, default=5, metavar="N", help="how many classes topk gives (5)")
    add("--labels", metavar="FILE", help="names of classes: a line each, or a list in a .json")
    add("--nulls", default="error", help="what a null leads to: an error, or null as its answer")
    add("--head", help="of a network without a signature: softmax, sigmoid, identity …")
    add("--batch-size", type=_auto, default="auto", metavar="N", help="rows at once (auto)")
    add("--precision", help="bfloat16 or int8, if not the network's own")
    add("--workers", type=_auto, default="auto", metavar="N", help="threads (one a core)")
    add("--overwrite", action="store_true", help="replace an output that exists")
    add("--quiet", action="store_true", help="show no progress")
    add("--allow-pickle", action="store_true", help="load a pickled network, which runs code")
    predict.set_defaults(command=_predict)


def _add_plan(commands: Any) -> None:
    from farandole.commands.plan import add_plan

    add_plan(commands)


def _auto(text: str) -> int | str:
    """A number, or the word for letting the program choose."""
    return text if text == "auto" else int(text)


def _doctor(options: argparse.Namespace) -> int:
    from farandole.commands.doctor import examine

    findings = []
    for finding in examine(None if options.no_spark else lambda: _session(options)):
        print(finding, flush=True)
        findings.append(finding)
    return 0 if all(finding.ok for finding in findings) else 1


def _session(options: argparse.Namespace) -> SparkSession:
    from pyspark.sql import SparkSession

    from farandole import _spark

    if options.remote:
        return SparkSession.builder.remote(options.remote).getOrCreate()
    if options.master:
        return SparkSession.builder.master(options.master).getOrCreate()
    return _spark.local_session("farandole-doctor", "*")


def _demo(options: argparse.Namespace) -> int:
    from farandole.commands.demo import run_demo

    run_demo(options.output, options.workers)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from farandole.explain import TOPICS, explain

    if options.topic is None:
        width = max(map(len, TOPICS))
        for name, topic in TOPICS.items():
            print(f"{name:<{width}}  {topic.about}")
        return 0
    chosen = vars(options)
    del chosen["command"]
    path = explain(chosen.pop("topic"), chosen.pop("output"), **chosen)
    print(f"The {'picture' if path.suffix == '.png' else 'page'}: {path}")
    return 0


def _predict(options: argparse.Namespace) -> int:
    import farandole

    done = farandole.predict(
        options.model,
        options.input,
        options.output,
        features=_names(options.features) if options.features else None,
        keep="all" if options.keep == "all" else _names(options.keep),
        column=options.column,
        answer=options.answer,
        k=options.k,
        labels=_labels(options.labels) if options.labels else (),
        nulls=options.nulls,
        head=options.head,
        batch_size=options.batch_size,
        precision=options.precision,
        num_workers=options.workers,
        overwrite=options.overwrite,
        progress=not options.quiet,
        allow_pickle=options.allow_pickle,
    )
    print(done)
    return 0


def _names(text: str) -> list[str]:
    """Columns between commas; the word for none of them."""
    return [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]


def _labels(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = json.loads(text) if path.endswith(".json") else text.splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"The labels can't be read: {error}") from error
    if not isinstance(found, list):
        raise InputError(f"{path!r} must hold a list of labels. Received: {type(found).__name__}")
    return [str(label) for label in found]


if __name__ == "__main__":
    sys.exit(main())
