"""Ten thousand columns: what a fit and a transform take beside Spark's own work on such a table.

    .venv/bin/python benchmarks/wide.py [--columns 10000] [--repeats 3]

64 rows, so that nearly all of the time is that of planning, compiling and moving columns. Spark's
own work: the same columns passed through a function that counts rows. All of them run in turn, in
a session that has seen each of them once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from support import reporting
from torch import nn

from farandole import _spark
from farandole.spark import TorchEstimator

ROWS = 64


def make_table(columns: int) -> tuple[DataFrame, list[str]]:
    values = np.random.default_rng(0).normal(size=(ROWS, columns)).astype("float32")
    names = [f"c{number}" for number in range(columns)]
    table = pa.table({**dict(zip(names, values.T, strict=True)), "label": values[:, 0]})
    return _spark.local_session("wide").createDataFrame(table), names


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


def contenders(frame: DataFrame, names: list[str]) -> dict[str, Callable[[], Any]]:
    estimator = TorchEstimator(
        network=nn.Linear(len(names), 1), loss="mse", featuresCols=names, learningRate=1e-4,
        numWorkers=2, epochs=1, batchSize=ROWS, progress=False,
    )  # fmt: skip
    model = estimator.fit(frame)
    return {
        "Spark: the columns through mapInArrow": lambda: frame.mapInArrow(
            rows_of, "rows long"
        ).collect(),
        "**Farandole: fit**": lambda: estimator.fit(frame),
        "**Farandole: transform**": lambda: model.transform(frame).select("prediction").collect(),
    }


def page(columns: int, seconds: dict[str, list[float]]) -> str:
    first = statistics.median(next(iter(seconds.values())))
    rows = [
        [name, reporting.spread(times, 1), f"{statistics.median(times) / first:.1f}"]
        for name, times in seconds.items()
    ]
    return (
        f"# {columns:,} columns\n\n{ROWS} rows of {columns:,} columns of numbers, `local[2]`, one "
        "epoch, two workers: nearly all of\nthe time is Spark's, for planning, compiling and "
        "moving so many columns. Run in turn, after each\nhad run once.\n\n"
        + reporting.markdown(["", "seconds, median (range)", "times the first line"], rows)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    calls = contenders(*make_table(options.columns))
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.repeats):
        for name, call in calls.items():
            found[name].append(reporting.timed(call))
    reporting.write("wide", {"seconds": found}, page(options.columns, found))
