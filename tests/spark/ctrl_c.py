"""A fit that is interrupted, and one after it: python -m tests.spark.ctrl_c FOLDER

Prints a line when the second epoch is over, and expects Ctrl-C then.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import SparkSession
from tests.spark.samples import frame, small_network

from farandole.spark import TorchEstimator
from farandole.training.events import EpochEnded

EPOCHS = 2000


def announce(event: object) -> None:
    if isinstance(event, EpochEnded) and event.epoch == 2:
        print("second epoch is over", flush=True)


def main(folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "farandole.daemon")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    data = frame(spark, 500)
    given: dict[str, Any] = {"network": small_network(), "batchSize": 32, "numWorkers": 2}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = TorchEstimator(**given, epochs=EPOCHS, observer=announce, progress=False).fit(data)
    ended = time.time()
    epochs = len(model.history)
    jobs = len(spark.sparkContext.statusTracker().getActiveJobsIds())
    again = TorchEstimator(**given, epochs=epochs, progress=False).fit(data)
    pairs = zip(model.network.parameters(), again.network.parameters(), strict=True)
    found = {
        "epochs": epochs,
        "ended": ended,
        "warnings": [str(warning.message) for warning in caught],
        "difference": max(float((a - b).detach().abs().max()) for a, b in pairs),
        "jobs": jobs,
        "scale": float(torch.cat([p.flatten() for p in again.network.parameters()]).abs().max()),
    }
    (folder / "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
