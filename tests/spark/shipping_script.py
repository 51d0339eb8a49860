"""A driver whose executors run another Python, on a cluster of its own or on Spark Connect:

    python shipping_script.py FOLDER [connect]

That Python has everything but farandole, then, on a cluster, neither torch nor pyarrow. Prints one
JSON object on its last line.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import SparkSession
from tests.clusters import StandaloneCluster, bare_python, error_of

import farandole
from farandole.spark import TorchEstimator, ship

FOLDER = Path(sys.argv[1])
os.environ.pop("PYTHONPATH")  # executors would inherit it, and find everything there


def frame() -> Any:
    rows = [([float(i), 1.0], i % 2) for i in range(8)]
    return spark.createDataFrame(rows, "features array<double>, label int")


def fit() -> Any:
    network = torch.nn.Linear(2, 2)
    return TorchEstimator(network=network, numWorkers=1, progress=False).fit(frame())


def predict() -> Any:
    classify = farandole.predict_udf(torch.nn.Linear(2, 1))
    return frame().select(classify("features")).collect()


def errors() -> dict[str, Any]:
    return {"fit": error_of(fit), "predict": error_of(predict)}


def before_and_after() -> dict[str, Any]:
    """What happens without farandole on executors, and with it."""
    return {
        "before": errors(),
        "names": [ship(spark), ship(spark)],
        "after": [row.prediction for row in fit().transform(frame()).collect()],
        "predicted": len(predict()),
    }


def connect(python: str) -> SparkSession:
    """A session of a server whose executors run this Python."""
    os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.local.dir", str(FOLDER / "spark")).getOrCreate()


plain = {"spark.python.daemon.module": "pyspark.daemon"}
without_farandole = bare_python(FOLDER / "without-farandole", without=())
if "connect" in sys.argv:
    spark = connect(without_farandole)
    found = before_and_after()
    spark.stop()
else:
    with StandaloneCluster(FOLDER, workers=1) as cluster:
        cluster.python = without_farandole
        spark = cluster.session(plain)
        found = before_and_after()
        spark.stop()
        cluster.python = bare_python(FOLDER / "bare", without=("torch", "pyarrow"))
        spark = cluster.session(plain)
        ship(spark)
        found["bare"] = errors()
        spark.stop()
print(json.dumps(found), flush=True)
