"""One fixed set of seeded trainings, for a change that must not change any number.

    .venv/bin/python scripts/histories.py record before.json     # before a refactoring
    .venv/bin/python scripts/histories.py compare before.json    # after it: equal to the last bit?

Every strategy, both kinds of solver, all four networks, frozen layers, and Spark. Left out is what
depends on the clock: asynchronous servers. Numbers depend on processor and version of torch,
so the file is compared with on the machine that wrote it, and isn't kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
import torch
from sklearn.datasets import load_digits, load_iris
from torch import nn

import farandole
from farandole.networks import MLP, RNN
from farandole.parallel import (
    AllReduce,
    DiLoCo,
    Half,
    Hybrid,
    LocalSGD,
    Naive,
    ParameterServer,
    Pipeline,
    PowerSGD,
    Ring,
    Sharded,
    TopK,
)

TIMES = {"seconds", "rows_per_second"}

STRATEGIES: dict[str, tuple[Any, int]] = {
    "alone": ("allreduce", 1),
    "allreduce": ("allreduce", 2),
    "allreduce, 3 workers": ("allreduce", 3),
    "allreduce over gloo": (AllReduce(transport="gloo"), 2),
    "ring": (Ring(), 2),
    "parameter server": (ParameterServer(), 2),
    "two parameter servers": (ParameterServer(servers=2), 2),
    "sharded 1": (Sharded(stage=1), 2),
    "sharded 2": (Sharded(stage=2), 2),
    "sharded 3": (Sharded(stage=3), 2),
    "naive": (Naive(), 2),
    "pipeline": (Pipeline(), 2),
    "hybrid": (Hybrid(), 4),
    "local SGD": (LocalSGD(), 2),
    "DiLoCo": (DiLoCo(), 2),
    "half": (AllReduce(compression=Half()), 2),
    "PowerSGD": (AllReduce(compression=PowerSGD(rank=2)), 2),
    "top-k": (AllReduce(compression=TopK()), 2),
}


def digits(rows: int = 300) -> pa.Table:
    data = load_digits()
    values = (data.data[:rows] / 16).astype("float32")
    return pa.table({"features": list(values), "label": data.target[:rows]})


def iris() -> pa.Table:
    data = load_iris()
    return pa.table({"features": list(data.data.astype("float32")), "label": data.target})


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make()


def train(network: nn.Module, table: Any, **options: Any) -> farandole.TrainingResult:
    full_batch = options.get("optimizer") in ("lbfgs", "gd")
    batches = {} if full_batch else {"batch_size": 32, "learning_rate": 0.01}
    return farandole.train(
        network,
        table,
        **{"epochs": 2, "seed": 3, "validation": 0.2, "progress": False, **batches, **options},
    )


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.Tanh(),
        nn.Linear(16, 10),
    )


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 10)
    )


def sequences() -> pa.Table:
    generator = np.random.default_rng(0)
    rows = [
        generator.standard_normal((n, 3)).astype("float32") for n in generator.integers(2, 9, 80)
    ]
    return pa.table(
        {
            "features": pa.array([r.tolist() for r in rows], pa.list_(pa.list_(pa.float32()))),
            "label": [int(r.sum() > 0) for r in rows],
        }
    )


def frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def local_runs() -> dict[str, Callable[[], farandole.TrainingResult]]:
    runs: dict[str, Callable[[], farandole.TrainingResult]] = {}
    for name, (strategy, workers) in STRATEGIES.items():
        runs[name] = lambda s=strategy, w=workers: train(
            seeded(plain), digits(), strategy=s, num_workers=w, clip_norm=1.0
        )
    both = {"one": 1, "two": 2}
    for name, workers in both.items():
        runs[f"lbfgs, {name}"] = lambda w=workers: train(
            seeded(plain),
            digits(),
            optimizer="lbfgs",
            num_workers=w,
            epochs=4,
        )
        runs[f"gd, {name}"] = lambda w=workers: train(
            seeded(plain),
            digits(),
            optimizer="gd",
            num_workers=w,
            epochs=4,
        )
        runs[f"frozen and cached, {name}"] = lambda w=workers: train(
            seeded(frozen), digits(), freeze="all but head", num_workers=w
        )
        runs[f"unfrozen later, {name}"] = lambda w=workers: train(
            seeded(frozen), digits(), freeze="all but head", unfreeze_at=2, num_workers=w
        )
        runs[f"RNN, {name}"] = lambda w=workers: train(
            seeded(lambda: RNN(features=3, outputs=2, hidden=8)), sequences(), num_workers=w
        )
        runs[f"batch normalisation, synchronised, {name}"] = lambda w=workers: train(
            seeded(chain), digits(), sync_batch_norm=True, num_workers=w
        )
        runs[f"CNN, {name}"] = lambda w=workers: train(
            seeded(
                lambda: nn.Sequential(
                    nn.Unflatten(1, (1, 8, 8)),
                    nn.Conv2d(1, 4, 3),
                    nn.ReLU(),
                    nn.Flatten(),
                    nn.Linear(144, 10),
                )
            ),
            digits(),
            num_workers=w,
            accumulation=2,
            schedule="cosine",
            weight=None,
        )
    runs["MLP, early stopping"] = lambda: train(
        seeded(lambda: MLP([4, 8, 3])), iris(), epochs=6, patience=2, metrics=["accuracy"]
    )
    return runs


def spark_runs() -> dict[str, list[dict[str, float]]]:
    from pyspark.sql import SparkSession

    from farandole.spark import TorchEstimator
    from farandole.spark.classification import MultilayerPerceptronClassifier

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    frame = spark.createDataFrame(digits().to_pandas())
    fitted = TorchEstimator(
        network=seeded(plain), epochs=2, batchSize=32, numWorkers=2, seed=3
    ).fit(frame)
    from pyspark.ml.functions import array_to_vector

    vectors = frame.select(array_to_vector("features").alias("features"), "label")
    perceptron = MultilayerPerceptronClassifier(layers=[64, 16, 10], maxIter=8, seed=1).fit(vectors)
    objective = list(perceptron.summary().objectiveHistory)
    found = {
        "Spark, TorchEstimator": _rows(fitted.history),
        "Spark, perceptron": [{"objective": value} for value in objective],
    }
    spark.stop()
    return found


def _rows(history: Any) -> list[dict[str, float]]:
    kept = [column for column in history.columns if column not in TIMES]
    return [{key: float(row[key]) for key in kept} for row in history[kept].to_dict("records")]


def _digest(network: nn.Module) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        total.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def collect() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, run in local_runs().items():
        print(name, flush=True)
        result = run()
        found[name] = {"history": _rows(result.history), "weights": _digest(result.network)}
    print("Spark", flush=True)
    return found | {name: {"history": rows} for name, rows in spark_runs().items()}


def main(verb: str, path: str) -> int:
    """Record, or compare and say what differs."""
    found = json.loads(json.dumps(collect()))
    if verb == "record":
        Path(path).write_text(json.dumps(found, indent=1))
        print(f"{len(found)} histories in {path}")
        return 0
    before = json.loads(Path(path).read_text())
    unlike = [name for name in {**before, **found} if before.get(name) != found.get(name)]
    print(f"{len(found) - len(unlike)} of {len(found)} histories are the same to the last bit")
    for name in unlike:
        print(f"differs: {name}\n  before {before.get(name)}\n  now    {found.get(name)}")
    return 1 if unlike else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in {"record", "compare"}:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
