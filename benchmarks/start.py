"""How long workers take to start: fresh interpreters against forks of one with torch loaded.

    .venv/bin/python benchmarks/start.py [--repeats 5] [--workers 1 2 4]

Each worker joins the ring and makes one optimizer step on nothing. "First" is the first run of a
driver or of a session, "then" any later one. The ways take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from support import reporting

import farandole
from farandole.engines import Engine, LocalEngine, SparkEngine, stop_fork_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Seconds = dict[str, list[float]]
SPARK_WORKERS = 2


def step() -> None:
    """What every training does: torch.optim loads its second half at the first step."""
    weights = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([weights])
    weights.sum().backward()
    optimizer.step()


def start(engine: Engine, workers: int) -> float:
    return reporting.timed(lambda: farandole.run(step, num_workers=workers, engine=engine))


def local(workers: int, repeats: int) -> Seconds:
    """Seconds of each way with so many local workers."""
    found: Seconds = {"fresh": [], "first": [], "then": []}
    for _ in range(repeats):
        found["fresh"].append(start(LocalEngine(fork_server=False), workers))
        stop_fork_server()
        found["first"].append(start(LocalEngine(), workers))
        found["then"] += [start(LocalEngine(), workers) for _ in range(3)]
    return found


@contextmanager
def session(daemon: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    found = (
        SparkSession.builder.master(f"local[{SPARK_WORKERS}]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.daemon.module", daemon)
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    found.range(2).count()  # the JVM's own first job isn't ours
    yield found
    found.stop()


def spark(daemon: str) -> tuple[float, list[float]]:
    """Seconds of the first run of a session, and of later ones, which reuse its workers."""
    with session(daemon) as found:
        engine = SparkEngine(found)
        first, *then = (start(engine, SPARK_WORKERS) for _ in range(4))
    return first, then


def spark_ways(repeats: int) -> dict[str, Seconds]:
    """The same for both daemons."""
    daemons = ("pyspark.daemon", "farandole.daemon")
    found: dict[str, Seconds] = {name: {"first": [], "then": []} for name in daemons}
    spark("farandole.daemon")  # warms up the JVM
    for _ in range(repeats):
        for name, seconds in found.items():
            first, then = spark(name)
            seconds["first"].append(first)
            seconds["then"] += then
    return found


def report(found: dict[int, Seconds], spark_found: dict[str, Seconds]) -> None:
    lines = []
    for workers, ways in found.items():
        before, after = statistics.median(ways["fresh"]), statistics.median(ways["then"])
        cells = [reporting.spread(ways[name]) for name in ("fresh", "first", "then")]
        lines.append([str(workers), *cells, f"{before / after:.0f}×"])
    head = ["workers", "fresh interpreters", "fork server, first run", "then", "sooner"]
    rows = [
        [f"`{name}`", *(reporting.spread(seconds[when]) for when in ("first", "then"))]
        for name, seconds in spark_found.items()
    ]
    spark_head = ["`spark.python.daemon.module`", "first run of a session", "then"]
    text = (
        "# How long workers take to start\n\n"
        "`farandole.run` of a function that makes one optimizer step on nothing, in seconds, "
        "median (range): a process\nfor each worker, torch, a ring, a step, and the end of all. "
        "Fresh interpreters take as long every time.\n\n"
        f"{reporting.markdown(head, lines)}\n\n"
        f"{SPARK_WORKERS} workers on Spark, in a session that runs already. Spark keeps its Python "
        "workers for later runs.\n\n"
        f"{reporting.markdown(spark_head, rows)}"
    )
    reporting.write("start", {"local": found, "spark": spark_found}, text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    report({n: local(n, given.repeats) for n in given.workers}, spark_ways(given.repeats))
