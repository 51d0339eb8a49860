"""Many networks at once, against Spark's CrossValidator, ideal packing and the full grid.

    .venv/bin/python benchmarks/tune.py [--repeats 3] [--quick] [--only asha]

The digits of scikit-learn (1,797×64) in a cached DataFrame of two partitions, `local[2]`. A grid of
8 perceptrons (four shapes, two numbers of L-BFGS iterations), each trained for 4 folds: 32
trainings, from the same weights, on folds of the same rows. Spark's `CrossValidator(parallelism=2)`
over its own `MultilayerPerceptronClassifier` stands against `Tuner` over the drop-in (an evaluator
decides, fits run from threads of the driver), and over a `TorchEstimator` with the same networks in
float64 (its history decides, two workers train all of them). All contenders run in turn; each ends
with the best one fitted on all rows. Packing: 32 trials with Adam, the sum of their seconds over
two slots against the time that the study took. ASHA: 27 trials with Adam, with it and without, in
the same order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyspark.ml import classification as theirs
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.functions import array_to_vector
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from sklearn.datasets import load_digits
from support import reporting

from farandole import _spark, networks
from farandole.spark import TorchEstimator, Tuner
from farandole.spark import classification as ours
from farandole.spark.perceptron import perceptron
from farandole.training import LBFGS
from farandole.tuning import Float, Training, tune

CORES, SEED = 2, 1
SHAPES = ([64, 16, 10], [64, 32, 10], [64, 64, 10], [64, 32, 16, 10])


def digits(folds: int) -> pa.Table:
    """Images, digits, and the number of each row's fold."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(images))
    flat = pa.FixedSizeListArray.from_arrays(pa.array((images[order] / 16).reshape(-1)), 64)
    columns = {"features": flat.cast(pa.list_(pa.float64())), "label": labels[order]}
    return pa.table({**columns, "fold": np.arange(len(images), dtype=np.int32) % folds})


def vectors(session: Any, table: pa.Table) -> Any:
    """A cached DataFrame of vectors, in as many partitions as there are cores."""
    frame = session.createDataFrame(table).repartition(CORES)
    frame = frame.withColumn("features", array_to_vector("features")).cache()
    frame.count()
    return frame


class Contest:
    """The same grid and folds for all contenders."""

    def __init__(self, frame: Any, folds: int, iterations: tuple[int, ...], shapes: Any) -> None:
        self._frame = frame
        self._iterations, self._shapes = iterations, shapes
        self._given = {"numFolds": folds, "foldCol": "fold", "parallelism": CORES, "seed": SEED}
        self._accuracy = MulticlassClassificationEvaluator(metricName="accuracy")

    def spark(self) -> dict[str, Any]:
        """Spark's own tuner and perceptron."""
        estimator = theirs.MultilayerPerceptronClassifier(seed=SEED)
        tuner = CrossValidator(
            estimator=estimator,
            estimatorParamMaps=self._grid(estimator, "layers", "maxIter", self._shapes),
            evaluator=self._accuracy,
            **self._given,
        )
        return self._run("spark", tuner)

    def drop_in(self) -> dict[str, Any]:
        """Tuner over the drop-in, one worker a fit."""
        estimator = ours.MultilayerPerceptronClassifier(seed=SEED, numWorkers=1)
        tuner = Tuner(
            estimator=estimator,
            estimatorParamMaps=self._grid(estimator, "layers", "maxIter", self._shapes),
            evaluator=self._accuracy,
            progress=False,
            **self._given,
        )
        return self._run("drop-in", tuner)

    def slots(self) -> dict[str, Any]:
        """Tuner over a TorchEstimator, whose workers train all trials."""
        estimator = TorchEstimator(
            optimizer=LBFGS(tolerance=1e-6, block_size=128),
            loss="cross_entropy",
            metrics=["accuracy"],
            seed=SEED,
            progress=False,
        )
        shapes = [
            perceptron(list(shape), "sigmoid", networks.spark_weights(list(shape), SEED))
            for shape in self._shapes
        ]
        tuner = Tuner(
            estimator=estimator,
            estimatorParamMaps=self._grid(estimator, "network", "epochs", shapes),
            metric="validation_accuracy",
            progress=False,
            **self._given,
        )
        return self._run("slots", tuner)

    def _grid(self, estimator: Any, shape: str, iterations: str, shapes: Any) -> Any:
        grid = ParamGridBuilder().addGrid(getattr(estimator, shape), list(shapes))
        return grid.addGrid(getattr(estimator, iterations), list(self._iterations)).build()

    def _run(self, name: str, tuner: Any) -> dict[str, Any]:
        start = time.perf_counter()
        model = tuner.fit(self._frame)
        found = {
            "seconds": time.perf_counter() - start,
            "accuracies": [float(one) for one in model.avgMetrics],
        }
        print(f"  {name}: {found}", file=sys.stderr, flush=True)
        return found


def packing(table: pa.Table, trials: int, epochs: int) -> dict[str, Any]:
    """How busy two slots are with trials that follow each other."""
    training = Training(networks.MLP([64, 64, 10]), epochs=epochs, validation=0.2, batch_size=32)
    study = tune(
        training,
        {"learning_rate": Float(1e-4, 1e-2, log=True)},
        table.drop_columns(["fold"]),
        metric="validation_accuracy",
        trials=trials,
        parallelism=CORES,
        sampler="random",
        engine="spark",
        progress=False,
    )
    ideal = study.trial_seconds / CORES
    found = {"seconds": study.seconds, "ideal": ideal, "share": ideal / study.seconds}
    print(f"  packing: {found}", file=sys.stderr, flush=True)
    return found


def halving(table: pa.Table, epochs: int, seed: int) -> dict[str, Any]:
    """Row-epochs of ASHA over those of the full grid, and what both find."""
    rates, widths, sizes = (0.0003, 0.003, 0.03), (8, 32, 128), (16, 64, 256)
    listed = [
        {"learning_rate": rate, "width": width, "batch_size": size}
        for rate, width, size in product(rates, widths, sizes)
    ]
    order = np.random.default_rng(seed).permutation(len(listed))
    found: dict[str, Any] = {}
    for pruner in ("none", "asha"):
        study = tune(
            Training(_network, epochs=epochs, validation=0.25),
            {"learning_rate": list(rates), "width": list(widths), "batch_size": list(sizes)},
            table.drop_columns(["fold"]),
            metric="validation_accuracy",
            sampler=[listed[number] for number in order],
            pruner=pruner,
            parallelism=CORES,
            engine="spark",
            seed=seed,
            progress=False,
        )
        found[pruner] = {"best": study.best_value, "row_epochs": study.row_epochs}
        found[pruner]["seconds"] = study.seconds
    found["share"] = found["asha"]["row_epochs"] / found["none"]["row_epochs"]
    print(f"  halving: {found}", file=sys.stderr, flush=True)
    return found


def _network(inputs: Any, width: int) -> torch.nn.Module:
    return networks.MLP([inputs.width, width, 10])


def main() -> None:
    """Run everything in turn, and write figures and table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small try that writes nothing")
    parser.add_argument("--only", choices=["asha"], help="these figures anew, beside the others")
    options = parser.parse_args()
    torch.set_num_threads(1)
    session = _spark.local_session("tune-benchmark", CORES)
    quick = options.quick
    if options.only:
        figures = json.loads((reporting.ROOT / "benchmarks/results/tune.json").read_text())
        figures["halving"] = [halving(digits(4), 27, seed=n) for n in range(options.repeats)]
        reporting.write("tune", figures, page(figures))
        return
    folds, iterations = (2, (3, 6)) if quick else (4, (50, 100))
    table = digits(folds)
    frame = vectors(session, table)
    warm = Contest(frame, folds, (2,), SHAPES[:1])
    contest = warm if quick else Contest(frame, folds, iterations, SHAPES)
    names = ("spark", "drop_in", "slots")
    for name in names:  # warm: Python workers, imports, the JVM's compiler
        getattr(warm, name)()
    figures = {name: [] for name in (*names, "packing", "halving")}
    for repeat in range(1 if quick else options.repeats):
        for name in names:
            figures[name].append(getattr(contest, name)())
        figures["packing"].append(packing(table, *((4, 2) if quick else (32, 20))))
        figures["halving"].append(halving(table, 3 if quick else 27, seed=repeat))
    session.stop()
    if quick:
        print(page(figures))
    else:
        reporting.write("tune", figures, page(figures))


def _seconds(runs: list[dict[str, Any]]) -> list[float]:
    return [run["seconds"] for run in runs]


def page(figures: dict[str, Any]) -> str:
    """The page of the docs."""
    spark = statistics.median(_seconds(figures["spark"]))
    rows = []
    for name, label in (
        ("spark", "Spark's CrossValidator over its perceptron"),
        ("drop_in", "**Tuner** over the drop-in, an evaluator decides"),
        ("slots", "**Tuner** over a TorchEstimator, its history decides"),
    ):
        times = spark / statistics.median(_seconds(figures[name]))
        last = figures[name][-1]["accuracies"]
        accuracies = f"{max(last):.4f} (all: {', '.join(f'{one:.3f}' for one in last)})"
        note = "" if name == "spark" else f"{times:.1f}× Spark (goal: ≥ 3×)"
        rows.append([label, reporting.spread(_seconds(figures[name]), 1), accuracies, note])
    contest = reporting.markdown(["", "seconds, median (range)", "best mean accuracy", ""], rows)
    shares = [100 * run["share"] for run in figures["packing"]]
    saved = [100 * run["share"] for run in figures["halving"]]
    bests = ", ".join(
        f"{run['asha']['best']:.4f} for {run['none']['best']:.4f}" for run in figures["halving"]
    )
    others = reporting.markdown(
        ["", "percent, median (range)", ""],
        [
            [
                "Packing: trial seconds / 2 slots, of the wall time",
                reporting.spread(shares, 1),
                "goal: ≥ 90",
            ],
            [
                "ASHA: row-epochs, of the full grid's",
                reporting.spread(saved, 1),
                f"goal: ≤ 35; best validation accuracy {bests}",
            ],
        ],
    )
    head = "# Many networks at once\n\n" + str(__doc__).split("\n\n", 2)[2]
    return f"{head}\n{contest}\n\n{others}\n"


if __name__ == "__main__":
    main()
