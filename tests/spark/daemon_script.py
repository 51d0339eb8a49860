"""A driver with `daemon_settings`, on a cluster of its own:

    python daemon_script.py FOLDER

Its executors' Python first lacks farandole, then has it. Prints one JSON object on its last line.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyspark.sql import SparkSession
from tests.clusters import StandaloneCluster, bare_python, error_of

from farandole.spark import TorchEstimator, daemon_settings, ship

OLD = {"spark.python.daemon.module": "farandole.daemon"}


def plain(spark: SparkSession) -> list[bool]:
    """A function that needs nothing; it says whether torch was there before it ran."""

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"torch": ["torch._dynamo" in sys.modules]})

    return [row.torch for row in spark.range(1).mapInArrow(told, "torch boolean").collect()]


def predictions(spark: SparkSession) -> int:
    rows = [([float(i), 1.0], i % 2) for i in range(8)]
    frame = spark.createDataFrame(rows, "features array<double>, label int")
    network = torch.nn.Linear(2, 2)
    model = TorchEstimator(network=network, numWorkers=1, epochs=1, progress=False).fit(frame)
    return int(model.transform(frame).count())


def main(folder: Path) -> dict[str, Any]:
    places = os.environ.pop("PYTHONPATH")  # executors would inherit it, and find everything there
    found: dict[str, Any] = {}
    with StandaloneCluster(folder, workers=1) as cluster:
        python = cluster.python
        cluster.python = bare_python(folder / "without-farandole", without=())
        spark = cluster.session(OLD)
        found["old"] = error_of(lambda: plain(spark))
        spark.stop()
        spark = cluster.session(daemon_settings())
        found["plain"] = plain(spark)
        found["fit"] = error_of(lambda: predictions(spark))
        ship(spark)
        found["shipped"] = predictions(spark)
        spark.stop()
        cluster.python = python
        spark = cluster.session({**daemon_settings(), "spark.executorEnv.PYTHONPATH": places})
        found["installed"] = plain(spark)
        spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
