"""A network applied to a whole DataFrame: every way that Spark ships, ours, and the limit.

    .venv/bin/python benchmarks/inference.py [--repeats 3] [--rows 1000000]

MNIST's images again and again, 784 float32 a row, in a cached DataFrame, to a sink that takes
everything and keeps nothing; `local[2]`. All contenders run in turn, in the same run. The limit
takes the same Arrow stream and calls the network with nothing else: no check, no choice, no copy.
The small network is 784–100–10, the deep one has six layers of 1,024 more. With `local[1]`, the JVM
has one core and Python the other: there, what one does while the other works comes for free.
Files are read and written by `farandole.predict` in this process, and by Spark for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from support import mnist, reporting
from support.inference_page import page
from torch import nn

import farandole
from farandole import _spark, networks

FEATURES, BATCH = 784, 10_000
ONE_BY_ONE = 20_000
"""Rows for the UDF that takes them one by one: a million would take minutes."""
VECTORS = 200_000
"""Rows for Spark's own perceptron, which takes vectors of doubles."""


def small() -> nn.Module:
    return networks.MLP([FEATURES, 100, 10], activation="sigmoid", seed=1).eval()


def deep() -> nn.Module:
    return networks.MLP([FEATURES, *[1024] * 7, 10], seed=1).eval()


def write_rows(path: Path, rows: int) -> None:
    """MNIST's images, as many as needed, in Parquet."""
    images = np.ascontiguousarray(mnist.load("train")[0], np.float32)
    schema = pa.schema([("id", pa.int64()), ("features", pa.list_(pa.float32()))])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 20_000):
            part = images[np.arange(start, min(start + 20_000, rows)) % len(images)]
            flat = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), FEATURES)
            ids = pa.array(np.arange(start, start + len(part)))
            lists = flat.cast(pa.list_(pa.float32()))
            writer.write_table(pa.table([ids, lists], schema=schema), row_group_size=20_000)


def one_by_one(network: nn.Module) -> Any:
    from pyspark.sql.functions import udf

    def predict(row: list[float]) -> float:
        with torch.inference_mode():
            return float(network(torch.tensor(row)[None]).argmax())

    return udf(predict, "double", useArrow=False)


def series(network: nn.Module) -> Any:
    from pyspark.sql.functions import pandas_udf

    def predict(column: pd.Series) -> pd.Series:
        with torch.inference_mode():
            scores = network(torch.from_numpy(np.stack(column.to_numpy())))
        return pd.Series(scores.argmax(1).double().numpy())

    return pandas_udf(predict, "double")


def iterator(network: nn.Module) -> Any:
    from pyspark.sql.functions import pandas_udf

    def predict(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for column in batches:
            with torch.inference_mode():
                scores = network(torch.from_numpy(np.stack(column.to_numpy())))
            yield pd.Series(scores.argmax(1).double().numpy())

    return pandas_udf(predict, "double")


def batch_udf(network: nn.Module) -> Any:
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import DoubleType

    def make() -> Callable[[np.ndarray], np.ndarray]:
        def predict(rows: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return network(torch.from_numpy(rows)).argmax(1).double().numpy()

        return predict

    return predict_batch_udf(
        make,
        return_type=DoubleType(),
        batch_size=4096,
        input_tensor_shapes=[[FEATURES]],
    )


def limit(network: nn.Module) -> Any:
    from pyspark.sql.functions import arrow_udf

    def predict(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for column in batches:
            rows = column.flatten().to_numpy().reshape(-1, FEATURES)
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Arrow's memory can't be written to
                scores = network(torch.from_numpy(rows))
            yield pa.array(scores.argmax(1).double().numpy())

    return arrow_udf(predict, "double")


def drained() -> Any:
    from pyspark.sql.functions import arrow_udf

    def predict(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for column in batches:
            yield pa.array(np.zeros(len(column)))

    return arrow_udf(predict, "double")


def ours(network: nn.Module) -> Any:
    return farandole.predict_udf(network, answer="class")


def sink(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def rounds(contenders: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of all contenders, in turn; a first round warms up and doesn't count."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repeats + 1):
        for name, run in contenders.items():
            seconds = reporting.timed(run)
            if number:
                found[name].append(seconds)
            print(f"  {name}: {seconds:.2f} s", file=sys.stderr, flush=True)
    return found


def over(frame: Any, udfs: dict[str, Any]) -> dict[str, Callable[[], None]]:
    return {name: lambda udf=udf: sink(frame.select(udf("features"))) for name, udf in udfs.items()}


def cached(frame: Any) -> Any:
    frame = frame.repartition(8).cache()
    frame.count()
    return frame


def of_small(frame: Any, repeats: int) -> dict[str, list[float]]:
    """The small network in all forms."""
    network = small()
    udfs = {"drain": drained(), "limit": limit(network), "ours": ours(network)}
    udfs |= {"series": series(network), "iterator": iterator(network), "batch": batch_udf(network)}
    some = frame.limit(ONE_BY_ONE).repartition(2).cache()
    some.count()
    single = {"one_by_one": lambda: sink(some.select(one_by_one(network)("features")))}
    return rounds({**over(frame, udfs), **single}, repeats)


def of_vectors(frame: Any, repeats: int) -> dict[str, list[float]]:
    """Spark's own perceptron and ours with its weights, over the same vectors."""
    from pyspark.ml.classification import MultilayerPerceptronClassifier
    from pyspark.ml.functions import array_to_vector, vector_to_array
    from pyspark.sql import functions as F

    arrays = cached(frame.select("features").limit(VECTORS))
    vectors = cached(arrays.select(array_to_vector("features").alias("features")))
    learner = MultilayerPerceptronClassifier(layers=[FEATURES, 100, 10], maxIter=1, seed=1)
    labelled = vectors.limit(500).withColumn("label", F.floor(F.rand(1) * 10))
    model = learner.fit(labelled)
    same = small()
    networks.load_spark_weights(same, model.weights.toArray())
    udf = ours(same)
    contenders = {
        "spark": lambda: sink(model.transform(vectors).select("prediction")),
        "ours": lambda: sink(vectors.select(udf(vector_to_array("features", "float32")))),
        "ours as they are": lambda: sink(vectors.select(udf("features"))),
        "spark, arrays": lambda: sink(
            model.transform(arrays.select(array_to_vector("features").alias("features"))).select(
                "prediction"
            )
        ),
        "ours, arrays": lambda: sink(arrays.select(udf("features"))),
    }
    found = rounds(contenders, repeats)
    vectors.unpersist()
    arrays.unpersist()
    return found


def of_deep(frame: Any, repeats: int) -> dict[str, Any]:
    """The deep network, with and without Spark."""
    network = deep()
    udfs = {"drain": drained(), "limit": limit(network), "ours": ours(network)}
    found: dict[str, Any] = rounds(over(frame, udfs), repeats)
    torch.set_num_threads(1)
    rows = torch.rand(BATCH, FEATURES)
    with torch.inference_mode():
        network(rows)
        seconds = [reporting.timed(lambda: network(rows)) for _ in range(5)]
    found["compute"] = [statistics.median(seconds) * frame.count() / BATCH]
    return found


def of_files(session: Any, path: Path, rows: int, repeats: int) -> dict[str, list[float]]:
    """From Parquet to Parquet: the number of each row and its class."""
    network, target = small(), path.with_name("out.parquet")
    udf = ours(network)

    def through_spark() -> None:
        frame = session.read.parquet(str(path))
        answered = frame.select("id", udf("features").alias("prediction"))
        answered.write.mode("overwrite").parquet(str(target.with_suffix(".spark")))

    def without() -> None:
        farandole.predict(
            network,
            path,
            target,
            features=["features"],
            keep=["id"],
            answer="class",
            overwrite=True,
            progress=False,
        )

    found = rounds({"spark": through_spark, "ours": without}, repeats)
    assert pq.ParquetFile(target).metadata.num_rows == rows
    return found


def of_to_pandas(session: Any, repeats: int) -> dict[str, list[float]]:
    """The course's own measurement: 2^22 rows of two columns to pandas."""
    from pyspark.sql import functions as F

    frame = session.range(1 << 22).withColumn("x", F.rand(1))

    def run(arrow: bool) -> None:
        session.conf.set("spark.sql.execution.arrow.pyspark.enabled", str(arrow).lower())
        frame.toPandas()

    found = rounds({"without": lambda: run(False), "with": lambda: run(True)}, min(repeats, 3))
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    return found


def measure(path: Path, cores: int, rows: int, repeats: int) -> dict[str, Any]:
    """All that one session is to measure."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 10g pyspark-shell"
    session = _spark.local_session("farandole-benchmark", cores)
    frame = session.read.parquet(str(path))
    some = cached(frame.limit(rows // 10))
    found: dict[str, Any] = {"deep": of_deep(some, repeats)}
    some.unpersist()
    if cores == 1:
        return found
    everything = cached(frame)
    found["small"] = of_small(everything, repeats)
    found["vectors"] = of_vectors(everything, repeats)
    everything.unpersist()
    found["files"] = of_files(session, path, rows, repeats)
    found["to_pandas"] = of_to_pandas(session, repeats)
    return found


def in_turn(path: Path, rows: int, repeats: int) -> dict[str, Any]:
    """One session after another, each in a process of its own."""
    found = {}
    for cores in (1, 2):
        start = time.perf_counter()
        command = [sys.executable, __file__, "--session", str(path), "--cores", str(cores)]
        command += ["--rows", str(rows), "--repeats", str(repeats)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[f"local[{cores}]"] = json.loads(done.stdout.splitlines()[-1])
        print(f"local[{cores}]: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--note", default="", help="what readers should know about this run")
    parser.add_argument("--session", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.session:
        found = measure(Path(options.session), options.cores, options.rows, options.repeats)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_rows(path, options.rows)
        found = in_turn(path, options.rows, options.repeats)
    figures = {"rows": options.rows, "one_by_one": ONE_BY_ONE, "vectors": VECTORS}
    figures |= {"note": options.note, **found}
    reporting.write("inference", figures, page(figures))


if __name__ == "__main__":
    main()
