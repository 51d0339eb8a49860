"""A driver on a cluster of its own whose worker says that it has GPUs 5 and 7:

    python gpu_script.py FOLDER

Prints one JSON object on its last line. There are no GPUs: what torch would see is told to the
code that asks, and everything else is Spark's.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from tests.clusters import StandaloneCluster, error_of

import farandole
from farandole.engines.spark_resources import TaskResources

FOLDER = Path(sys.argv[1])


def chosen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a worker with Spark's grant would compute on, if torch saw eight GPUs."""
    import time

    from pyspark import TaskContext

    from farandole import _spark, devices

    list(batches)
    time.sleep(1)  # so that both tasks run at once
    devices.visible_gpus = lambda: 8
    granted = _spark.granted_gpus(TaskContext.get())
    yield pa.RecordBatch.from_pydict({"device": [devices.choose_device("auto", granted)]})


def fit(**options: Any) -> Any:
    rows = spark.createDataFrame([(float(i), 2.0 * i) for i in range(16)], "x double, label double")
    return farandole.train(torch.nn.Linear(1, 1), rows, loss="mse", progress=False, **options)


def predict(**options: Any) -> int:
    rows = spark.createDataFrame([([1.0],), ([2.0],)], "x array<double>")
    column = farandole.predict_udf(torch.nn.Linear(1, 1), **options)("x")
    return len(rows.select(column).collect())


def devices_of(session: Any, cpus: int | None = None) -> list[str]:
    resources = TaskResources.of(session, "auto", cpus)
    rows = session.range(0, 2, 1, 2).repartition(2)
    found = rows.mapInArrow(chosen, "device string", profile=resources.profile).collect()
    return sorted(row.device for row in found)


found: dict[str, Any] = {}
with StandaloneCluster(FOLDER, workers=1, cores=2, gpus=(5, 7)) as cluster:
    spark = cluster.session({"spark.executor.resource.gpu.amount": "2"})
    found["devices"] = devices_of(spark)
    found["granted"] = error_of(lambda: fit(num_workers=2))
    found["cpu"] = list(fit(num_workers=2, device="cpu").workers.index)
    found["too many"] = error_of(lambda: fit(num_workers=3, device="cuda"))
    found["threads"] = farandole.run(
        torch.get_num_threads, num_workers=1, device="cpu", cpus_per_worker=2
    )
    found["too many cores"] = error_of(
        lambda: farandole.run(int, num_workers=2, device="cpu", cpus_per_worker=2)
    )
    spark.stop()
    shared = {"spark.executor.resource.gpu.amount": "2", "spark.task.resource.gpu.amount": "0.5"}
    spark = cluster.session(shared)
    found["shared by default"] = devices_of(spark)
    found["prediction"] = error_of(predict)
    found["predicted on the cpu"] = predict(device="cpu")
    spark.stop()
print(json.dumps(found), flush=True)
