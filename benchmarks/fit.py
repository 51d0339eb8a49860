"""One fit, end to end, against everything that a Spark user could take instead.

    .venv/bin/python benchmarks/fit.py [--repeats 5] [--rows 60000]

60,000×784 float32 from Parquet, Linear(784,100)–ReLU–Linear(100,10), Adam, global batch 256,
3 epochs, 2 workers with one thread each. All contenders run in turn, in the same run. The last
lines are 2,400,000×6 numbers for one epoch, as an array and as a Vector (`--only columns`). On Ray,
which has two cores too, but says three so that Ray Data can read beside the workers (`--only ray`),
fits come in turn with each other after the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.ml.classification import MultilayerPerceptronClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.functions import array_to_vector
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import functions as F
from support import ray_fits, reporting
from torch import nn

import farandole
from farandole import _spark
from farandole.spark import TorchEstimator

EPOCHS, BATCH, WORKERS, RATE = 3, 256, 2, 1e-3


def network() -> nn.Module:
    """The network of the comparison, with the same start for everybody."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def make_data(rows: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Ten overlapping clouds in 784 dimensions, written as Parquet."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, rows)
    centres = rng.normal(size=(10, 784)) * 0.12
    features = (centres[labels] + rng.normal(size=(rows, 784))).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), 784)
    table = pa.table({"features": column.cast(pa.list_(pa.float32())), "label": labels})
    pq.write_table(table, path, row_group_size=10_000)
    return features, labels


def our_fit(frame: Any) -> tuple[dict[str, float], Any]:
    """(a) The estimator: seconds by phase, and the model."""
    start = time.perf_counter()
    model = TorchEstimator(
        network=network(),
        epochs=EPOCHS,
        batchSize=BATCH,
        learningRate=RATE,
        numWorkers=WORKERS,
        progress=False,
    ).fit(frame)
    total = time.perf_counter() - start
    return {"total": total, **model.seconds}, model


def bare_ddp(path: str) -> float:
    """(b) The same loop as bare torch DDP over gloo, tensors already in memory."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, size = dist.get_rank(), dist.get_world_size()
    data = np.load(path)
    x = torch.from_numpy(data["features"][rank::size].copy())
    y = torch.from_numpy(data["labels"][rank::size].copy())
    return _ddp_epochs(DistributedDataParallel(network()), x, y, BATCH // size)


def _ddp_epochs(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    start = time.perf_counter()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return time.perf_counter() - start


def one_process(path: str, threads: int) -> float:
    """(c) One process with all cores over the same tensors."""
    torch.set_num_threads(threads)
    data = np.load(path)
    x, y = torch.from_numpy(data["features"]), torch.from_numpy(data["labels"])
    return _ddp_epochs(network(), x, y, BATCH)


def distributor_fit(frame: Any, rows: int) -> float:
    """(d) Spark's TorchDistributor with its DataFrame loader."""

    def train(samples: int) -> float:
        import torch.distributed as dist
        from pyspark.ml.torch.distributor import _get_spark_partition_data_loader
        from torch.nn.parallel import DistributedDataParallel

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        model = DistributedDataParallel(
            nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        start = time.perf_counter()
        for _ in range(3):
            for x, y in _get_spark_partition_data_loader(samples, 128, num_workers=0):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.float()), y.long()).backward()
                optimizer.step()
        seconds = time.perf_counter() - start
        del model, optimizer
        dist.destroy_process_group()
        return seconds

    distributor = TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False)
    return reporting.timed(lambda: distributor._train_on_dataframe(train, frame, rows // WORKERS))


def spark_mlp(frame: Any, budget: float) -> dict[str, float]:
    """(e) Spark ML's own perceptron with about the time that our fit takes, and what it reaches."""
    vectors = frame.select(array_to_vector("features").alias("features"), "label").cache()
    vectors.count()

    def fit(iterations: int) -> tuple[float, Any]:
        start = time.perf_counter()
        model = MultilayerPerceptronClassifier(
            layers=[784, 100, 10], maxIter=iterations, seed=0
        ).fit(vectors)
        return time.perf_counter() - start, model

    fit(1)
    one, model = fit(1)
    five, _ = fit(5)
    iterations = max(1, int(1 + (budget - one) / ((five - one) / 4)))
    seconds, model = fit(iterations)
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(
        model.transform(vectors)
    )
    vectors.unpersist()
    return {"iterations": iterations, "seconds": seconds, "accuracy": accuracy}


def fits_on_ray(path: Path, repeats: int) -> dict[str, Any]:
    """(f) Ours on Ray, over the files and over a data set, and Ray Train with Ray Data."""
    ray = ray_fits.start(WORKERS)
    options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE}
    found: dict[str, list[Any]] = {"files": [], "data_set": [], "ray_train": []}
    for _ in range(repeats + 1):
        found["files"].append(ray_fits.our_fit(network(), str(path), WORKERS, **options))
        rows = ray.data.read_parquet(str(path))
        found["data_set"].append(ray_fits.our_fit(network(), rows, WORKERS, **options))
        found["ray_train"].append(
            ray_fits.ray_train_fit(network, str(path), WORKERS, EPOCHS, BATCH, RATE)
        )
    ray.shutdown()
    return {name: fits[1:] for name, fits in found.items()}  # the first ones are cold


def ray_rows(found: dict[str, Any]) -> list[list[str]]:
    """The lines of the table about Ray."""
    totals = {name: [fit["total"] for fit in found[name]] for name in ("files", "data_set")}
    times = statistics.median(found["ray_train"]) / statistics.median(totals["data_set"])
    return [
        ["**Farandole on Ray, Parquet files**", reporting.spread(totals["files"]), ""],
        ["**Farandole on Ray, ray.data.Dataset**", reporting.spread(totals["data_set"]), ""],
        [
            "Ray Train with Ray Data, end to end",
            reporting.spread(found["ray_train"]),
            f"Farandole on the same data set is {times:.1f}× faster",
        ],
    ]


def column_kinds(session: Any, rows: int, repeats: int) -> dict[str, list[float]]:
    """What a fit takes but for training: on an array column, and on equal rows as Vectors."""
    x = np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 6)
    table = pa.table({"features": column.cast(pa.list_(pa.float32())), "label": x[:, 0] > 0})
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder) / "arrays", row_group_size=200_000)
        arrays = session.read.parquet(f"{folder}/arrays").withColumn("label", F.expr("int(label)"))
        as_vectors = arrays.withColumn("features", array_to_vector("features"))
        as_vectors.write.parquet(f"{folder}/vectors")
        frames = {"array": arrays, "vector": session.read.parquet(f"{folder}/vectors")}
        found: dict[str, list[float]] = {kind: [] for kind in frames}
        for _ in range(repeats + 1):
            for kind, frame in frames.items():
                found[kind].append(_seconds_but_training(frame))
        return {kind: seconds[1:] for kind, seconds in found.items()}  # the first ones are cold


def _seconds_but_training(frame: Any) -> float:
    start = time.perf_counter()
    options: dict[str, Any] = {"epochs": 1, "batchSize": 65_536, "numWorkers": WORKERS}
    model = TorchEstimator(network=nn.Linear(6, 2), progress=False, **options).fit(frame)
    return time.perf_counter() - start - model.seconds["train"]


def iris_overhead(session: Any, repeats: int) -> dict[str, Any]:
    """What a fit costs besides training, on 150 rows: the first of a session, and later ones."""
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    frame = session.createDataFrame(pa.table({"features": list(x.astype(np.float32)), "label": y}))

    def overhead() -> float:
        start = time.perf_counter()
        estimator = TorchEstimator(
            network=nn.Linear(4, 3), epochs=1, numWorkers=WORKERS, progress=False
        )
        model = estimator.fit(frame)
        return time.perf_counter() - start - model.seconds["train"]

    return {"cold": overhead(), "warm": [overhead() for _ in range(repeats)]}


def main() -> None:
    """Run everything in turn, and write figures and table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--vector-rows", type=int, default=2_400_000)
    parser.add_argument("--only", choices=["columns", "ray"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only == "ray":
        with tempfile.TemporaryDirectory() as folder:
            make_data(options.rows, Path(folder) / "train.parquet")
            found = fits_on_ray(Path(folder) / "train.parquet", options.repeats)
        print(reporting.markdown(["", "seconds, median (range)", ""], ray_rows(found)))
        return
    session = _spark.local_session("fit-benchmark", WORKERS)
    if options.only:
        print(column_rows(column_kinds(session, options.vector_rows, options.repeats)))
        session.stop()
        return
    figures: dict[str, Any] = {"iris": iris_overhead(session, options.repeats)}
    with tempfile.TemporaryDirectory() as folder:
        parquet, arrays = Path(folder) / "train.parquet", str(Path(folder) / "train.npz")
        features, labels = make_data(options.rows, parquet)
        np.savez(arrays, features=features, labels=labels)
        frame = session.read.parquet(str(parquet))
        measure(figures, frame, arrays, options)
        budget = statistics.median(fit["total"] for fit in figures["ours"])
        figures["spark_mlp"] = spark_mlp(frame, budget)
        figures["ray"] = fits_on_ray(parquet, max(1, options.repeats // 2))
    figures["columns"] = column_kinds(session, options.vector_rows, options.repeats)
    reporting.write("fit", figures, table(figures))
    session.stop()


def measure(figures: dict[str, Any], frame: Any, arrays: str, options: Any) -> None:
    """All contenders in turn, so that a slow minute hits them alike."""
    threads = os.cpu_count() or 1
    for name in ("ours", "ddp", "one_process", "distributor"):
        figures[name] = []
    our_fit(frame)  # warm: Python workers, imports, the JVM's code
    for turn in range(options.repeats):
        seconds, model = our_fit(frame)
        figures["ours"].append(seconds)
        figures["accuracy"] = float(model.history["train_accuracy"].iloc[-1])
        ddp = farandole.run(bare_ddp, (arrays,), num_workers=WORKERS, engine="local")
        figures["ddp"].append(max(ddp))
        figures["one_process"].extend(
            farandole.run(one_process, (arrays, threads), num_workers=1, engine="local")
        )
        if turn < max(1, options.repeats // 2):
            figures["distributor"].append(distributor_fit(frame, options.rows))
        print(f"turn {turn + 1}: {seconds}, ddp {figures['ddp'][-1]:.2f}", file=sys.stderr)


def column_rows(columns: dict[str, list[float]]) -> list[list[str]]:
    """The lines of the table about columns of arrays and of vectors."""
    times = statistics.median(columns["vector"]) / statistics.median(columns["array"])
    return [
        ["many rows as arrays, all but training", reporting.spread(columns["array"]), ""],
        [
            "the same rows as Vectors, all but training",
            reporting.spread(columns["vector"]),
            f"{times:.2f}× the arrays' time (goal: ≤ 1.3×)",
        ],
    ]


def table(figures: dict[str, Any]) -> str:
    """The page of the docs."""
    ours = {phase: [fit[phase] for fit in figures["ours"]] for phase in figures["ours"][0]}
    rest = [fit["total"] - fit["train"] for fit in figures["ours"]]
    ddp, other = figures["ddp"], figures["distributor"]
    mlp, iris = figures["spark_mlp"], figures["iris"]
    half = statistics.median
    rows = [
        ["**Farandole, end to end**", reporting.spread(ours["total"]), ""],
        ["– everything but training", reporting.spread(rest), "goal: ≤ 2.5 s"],
        ["– reading, in the workers", reporting.spread(ours["read"]), ""],
        ["– ring-up", reporting.spread(ours["ring-up"]), ""],
        [
            "– training",
            reporting.spread(ours["train"]),
            f"{half(ours['train']) / half(ddp):.2f}× bare DDP (goal: ≤ 1.1×)",
        ],
        ["bare torch DDP (gloo), tensors in memory: training only", reporting.spread(ddp), ""],
        [
            "one process, all cores, tensors in memory: training only",
            reporting.spread(figures["one_process"]),
            "",
        ],
        [
            "TorchDistributor with its DataFrame loader, end to end",
            reporting.spread(other),
            f"Farandole is {half(other) / half(ours['total']):.1f}× faster (goal: ≥ 4×)",
        ],
        [
            f"Spark ML's perceptron, {mlp['iterations']} iterations",
            f"{mlp['seconds']:.2f} (one run)",
            f"accuracy {mlp['accuracy']:.3f}; Farandole's {figures['accuracy']:.3f}",
        ],
        ["Iris, overhead of a cold fit", f"{iris['cold']:.2f} (one run)", ""],
        ["Iris, overhead of a warm fit", reporting.spread(iris["warm"]), "goal: < 2.5 s"],
        *column_rows(figures["columns"]),
        *ray_rows(figures["ray"]),
    ]
    head = "# One fit, side by side\n\n" + str(__doc__).split("\n\n", 2)[2]
    return head + "\n" + reporting.markdown(["", "seconds, median (range)", ""], rows)


if __name__ == "__main__":
    main()
