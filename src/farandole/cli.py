"""The command line: `farandole doctor`, `farandole demo`, `farandole explain`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from farandole import __version__
from farandole.errors import FarandoleError

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

    explain = commands.add_parser("explain", help="draw what activations or depth do to gradients")
    explain.add_argument("topic", nargs="?", metavar="TOPIC", help="without one: all there are")
    explain.add_argument("--output", default="farandole-explain", help="folder for the picture")
    explain.set_defaults(command=_explain)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from farandole.doctor import examine

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
    from farandole.demo import run_demo

    run_demo(options.output, options.workers)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from farandole.explain import TOPICS, explain

    if options.topic is None:
        width = max(map(len, TOPICS))
        for name, topic in TOPICS.items():
            print(f"{name:<{width}}  {topic.about}")
        return 0
    path = explain(options.topic, options.output)
    print(f"The picture: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
