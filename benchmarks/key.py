"""What the stable key costs: rows placed by their content, against two ways that aren't stable.

    .venv/bin/python benchmarks/key.py [--repeats 7] [--rows 60000]

60,000×784 float32 from Parquet go to two barrier tasks that only drain them. The ways take turns.
One warm fit (3 epochs, batch 256) tells how much of it the difference is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import reporting
from torch import nn

from farandole.data.schema import Columns
from farandole.data.source import placed_rows
from farandole.spark import TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKERS = 2
COLUMNS = Columns(("features",), ("label",))
Way = Callable[["DataFrame"], "DataFrame"]


def by_content(frame: DataFrame) -> DataFrame:
    """As TorchEstimator does it: a hash of all columns decides on the worker."""
    return placed_rows(frame, COLUMNS, WORKERS, shuffle=True)


def by_turns(frame: DataFrame) -> DataFrame:
    """Spark's own `repartition(2)`: another layout or a retry gives other batches."""
    return frame.select("features", "label").repartition(WORKERS)


def by_chance(frame: DataFrame) -> DataFrame:
    """A random key: the least that a shuffle can cost, and never the same twice."""
    from pyspark.sql import functions as F

    keyed = frame.select("features", "label", F.rand().alias("key"))
    return keyed.repartitionById(WORKERS, F.floor(F.col("key") * WORKERS).cast("int"))


WAYS: dict[str, Way] = {
    "hash of the content (stable)": by_content,
    "`repartition(2)`": by_turns,
    "random key": by_chance,
}


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


def drained(frame: DataFrame, expected: int) -> None:
    found = frame.mapInArrow(drain, "rows long", barrier=True).collect()
    assert sum(row.rows for row in found) == expected


def fit(frame: DataFrame) -> None:
    network = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    TorchEstimator(
        network=network, epochs=3, batchSize=256, numWorkers=WORKERS, progress=False
    ).fit(frame)


def make_data(rows: int, path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 784)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), 784)
    labels = rng.integers(0, 10, rows)
    table = pa.table({"features": column.cast(pa.list_(pa.float32())), "label": labels})
    pq.write_table(table, path, row_group_size=10_000)


def session() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    found = (
        SparkSession.builder.master(f"local[{WORKERS}]")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    return found


def measure(rows: int, repeats: int) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each way, and of whole fits."""
    with tempfile.TemporaryDirectory(prefix="farandole-") as folder:
        path = Path(folder) / "rows.parquet"
        make_data(rows, path)
        spark = session()
        frame = spark.read.parquet(str(path))
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        for turn in range(repeats + 1):
            for name, way in WAYS.items():
                seconds = reporting.timed(lambda way=way: drained(way(frame), rows))
                if turn:  # the first round warms everything up
                    found[name].append(seconds)
        fits = [reporting.timed(lambda: fit(frame)) for _ in range(4)][1:]
        spark.stop()
    return found, fits


def report(rows: int, found: dict[str, list[float]], fits: list[float]) -> None:
    middle = {name: statistics.median(values) for name, values in found.items()}
    stable, whole = next(iter(middle)), statistics.median(fits)
    lines = []
    for name, values in found.items():
        share = (middle[stable] - middle[name]) / whole
        note = "" if name == stable else f"{share:+.1%} of a fit"
        lines.append([name, reporting.spread(values), note])
    lines.append(["one fit, end to end", reporting.spread(fits), ""])
    table = reporting.markdown(["rows go by", "seconds, median (range)", "the key costs"], lines)
    figures = {"rows": rows, "seconds": found, "fit": fits}
    text = (
        "# What the stable key costs\n\n"
        f"{rows:,}×784 float32 from Parquet to two barrier tasks that only drain them. The key is "
        "what makes batches\nthe same for any number of workers, any partitioning and any retry."
    )
    reporting.write("key", figures, f"{text}\n\n{table}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=int, default=60_000)
    given = parser.parse_args()
    report(given.rows, *measure(given.rows, given.repeats))
