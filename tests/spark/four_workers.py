"""Fit with 1, 2, 3 and 4 workers: python -m tests.spark.four_workers FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.samples import Ledger, frame

from farandole.spark import TorchEstimator

RATE = {"shuffled": 0.05, "ordered": 0.3}


def losses(spark: SparkSession, folder: Path, name: str, workers: int) -> list[float]:
    """The losses of a fit whose ledger lies beside the result."""
    pages = folder / f"{name}-{workers}"
    pages.mkdir()
    data = frame(spark, 131).repartition(workers + 2)
    if name == "ordered":
        data = data.orderBy("id")
    model = TorchEstimator(
        network=Ledger(str(pages)),
        featuresCols=["features", "id"],
        numWorkers=workers,
        optimizer="sgd",
        learningRate=RATE[name],
        epochs=2,
        batchSize=32,
        shuffle=name == "shuffled",
        progress=False,
    ).fit(data)
    assert model.steps is not None
    return list(model.steps["loss"])


def main(folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "farandole.daemon")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    counts = {"shuffled": (4, 3, 2, 1), "ordered": (4, 3)}
    found = {name: {n: losses(spark, folder, name, n) for n in counts[name]} for name in counts}
    (folder / "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
