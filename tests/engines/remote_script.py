"""A driver of a Spark that needs a process of its own:

    python remote_script.py connect FOLDER
    python remote_script.py spark://…

Prints one JSON object on its last line.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pyspark.sql import SparkSession

import farandole
from farandole.engines import resolve
from farandole.errors import NotEnoughSlots, WorkerFailed

MASTER = sys.argv[1]
found: dict[str, object] = {}


def session() -> SparkSession:
    if MASTER == "connect":
        return (
            SparkSession.builder.remote("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.python.daemon.module", "farandole.daemon")
            .config("spark.local.dir", f"{sys.argv[2]}/spark")
            .config("spark.sql.warehouse.dir", f"{sys.argv[2]}/warehouse")
            .getOrCreate()
        )
    return (
        SparkSession.builder.master(MASTER)
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "farandole.daemon")
        .config("spark.executor.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )


class Place:
    """Of `__main__`: it has to travel by value."""

    def __init__(self) -> None:
        world = farandole.current_world()
        total = torch.tensor([world.rank + 1.0])
        dist.all_reduce(total)
        print("hello from", world.rank)
        self.values = [world.rank, world.size, world.local_rank, total.item()]
        self.executor = os.getppid()


class Oddity(Exception):
    """A user's own error."""


def fail(text: str) -> None:
    if farandole.current_world().rank == 1:
        raise Oddity(text)
    time.sleep(60)


def failure(text: str) -> dict[str, object]:
    start = time.monotonic()
    try:
        farandole.run(fail, (text,), num_workers=2)
    except WorkerFailed as error:
        return {
            "rank": error.rank,
            "cause": type(error.__cause__).__name__,
            "own": isinstance(error.__cause__, Oddity),
            "text": str(error)[-4000:],
            "seconds": time.monotonic() - start,
        }
    return {}


def too_many() -> list[object]:
    start = time.monotonic()
    try:
        farandole.run(os.getpid, num_workers=3)
    except NotEnoughSlots as error:
        return [error.wanted, error.slots, time.monotonic() - start]
    return []


def fit(spark: SparkSession) -> dict[str, object]:
    from farandole.spark import TorchEstimator

    rows = [([float(i % 7), float(i % 5)], i % 2) for i in range(64)]
    frame = spark.createDataFrame(rows, "features array<float>, label int")
    torch.manual_seed(0)
    network = torch.nn.Linear(2, 2)
    # One batch an epoch: the path then is the same however the rows are placed.
    options = {"loss": "cross_entropy", "epochs": 3, "progress": False}
    model = TorchEstimator(network=network, batchSize=64, numWorkers=2, **options).fit(frame)
    local = farandole.train(network, frame.toPandas(), engine="local", batch_size=64, **options)
    return {
        "cluster": list(model.history["train_loss"]),
        "local": list(local.history["train_loss"]),
    }


def predict(spark: SparkSession) -> dict[str, object]:
    """A network that is too large to go with the query."""
    torch.manual_seed(0)
    wide, narrow = (torch.nn.Linear(*size, bias=False) for size in ((2, 100_000), (100_000, 3)))
    network = torch.nn.Sequential(wide, torch.nn.Tanh(), narrow)  # odd: all classes occur
    rows = [(i, [i % 7 - 3.0, i % 5 - 2.0]) for i in range(64)]
    frame = spark.createDataFrame(rows, "id int, features array<float>").repartition(2)
    classify = farandole.predict_udf(network, answer="class")
    farandole.register(spark, "classify", network, answer="class")
    frame.createOrReplaceTempView("rows_to_classify")
    answers = frame.select("id", classify("features").alias("found")).orderBy("id").collect()
    by_sql = spark.sql("SELECT classify(features) AS found FROM rows_to_classify ORDER BY id")
    with torch.no_grad():
        scores = network(torch.tensor([features for _, features in rows]))
    return {
        "file": os.path.getsize(classify.application.predictor.path),
        "udf": [row.found for row in answers],
        "sql": [row.found for row in by_sql.collect()],
        "torch": scores.argmax(1).tolist(),
    }


spark = session()
found["engine"] = resolve(None).name
places = farandole.run(Place, num_workers=2)
found["places"] = [place.values for place in places]
found["known class"] = all(isinstance(place, Place) for place in places)
found["executors"] = len({place.executor for place in places})
found["too many"] = too_many()
found["failure"] = failure("boom")
if MASTER == "connect":  # whose messages have a limit of their own
    found["huge failure"] = failure("boom" * 50_000)
    from tests.spark.connect import estimate

    estimate(spark, Path(sys.argv[2]))
else:
    found["losses"] = fit(spark)
found["predictions"] = predict(spark)
found["again"] = [place.values for place in farandole.run(Place, num_workers=2)]
spark.stop()
print(json.dumps(found), flush=True)
