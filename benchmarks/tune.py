"""Many networks at once, against Spark's CrossValidator, ideal packing and the full grid.

    .venv/bin/python benchmarks/tune.py [--repeats 3] [--quick] [--only asha]

The digits of scikit-learn (1,797×64) in a cached DataFrame of two partitions, `local[2]`. A grid of
8 perceptrons (four shapes, two numbers of L-BFGS iterations), each trained for 4 folds: 32
trainings, from the same weights, on folds of the same rows. Spark's `CrossValidator(parallelism=2)`
over its own `MultilayerPerceptronClassifier` stands against `Tuner` over the drop-in (an evaluator
decides, fits run from threads of the driver), and over a `TorchEstimator` with the same networks in
float64 (its history decides, two workers train all of them). All contenders run in turn; each ends
with the best one fitted on all rows. Packing: 32 trials with Adam, the sum of their seconds over
two slots against the time that the study took.

ASHA: a grid of 27 trainings with Adam (three learning rates, widths and batch sizes, 27 epochs),
with it and without, in the same order, for five draws of MNIST's rows in 14×14 pixels: 2,000 to
train on, 8,000 to validate on, 10,000 that no trial sees. The rule, fixed before the runs: ASHA has
reached the grid if the best validation accuracy that it found is as good as the grid's, or less by
no more than the standard deviation of five more trainings of the grid's best arguments, each from
another seed; it counts what the median draw does. (The digits, with 450 rows to validate on, can't
decide that: the grid's best of three seeds were number 1, 2 and 8 of 27 after 3 epochs, and number
8, 1 and 5 after 9. One of them went between 0.93 and 0.98 in its last six epochs; another led by
three rows. The best of 27 such trials is mostly the luckiest, which no earlier look can tell.)
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
from support import mnist, reporting

from farandole import _spark, networks
from farandole.spark import TorchEstimator, Tuner
from farandole.spark import classification as ours
from farandole.spark.perceptron import perceptron
from farandole.training import LBFGS
from farandole.tuning import Float, Training, tune

CORES, SEED = 2, 1
DRAWS = 5
TRAINED, VALIDATED = 2000, 8000
RATES, WIDTHS, SIZES = (0.0003, 0.003, 0.03), (8, 32, 128), (16, 64, 256)
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


def small_mnist(part: str, rows: int, seed: int) -> pa.Table:
    """Rows of MNIST drawn by a seed, 14×14 pixels each; `held_out` marks those to validate on."""
    images, labels = mnist.load(part)
    drawn = np.random.default_rng(seed).permutation(len(images))[:rows]
    pixels = images[drawn].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4), dtype=np.float32)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 196)
    held_out = np.arange(rows) >= TRAINED
    return pa.table({"features": flat, "label": labels[drawn], "held_out": held_out})


def halving(epochs: int, seed: int) -> dict[str, Any]:
    """Row-epochs of ASHA over those of the full grid, and what both find."""
    table, unseen = small_mnist("train", TRAINED + VALIDATED, seed), small_mnist("t10k", 10000, 0)
    training = Training(_network, epochs=epochs, validation="held_out")
    given: Any = {"metric": "validation_accuracy", "parallelism": CORES, "engine": "spark"}
    given |= {"seed": seed, "progress": False}
    space = {"learning_rate": list(RATES), "width": list(WIDTHS), "batch_size": list(SIZES)}
    listed = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    order = np.random.default_rng(seed).permutation(len(listed))
    found: dict[str, Any] = {"seed": seed}
    for pruner in ("none", "asha"):
        trials = [listed[number] for number in order]
        study = tune(training, space, table, sampler=trials, pruner=pruner, **given)
        right = study.result.predictor(unseen).prediction == unseen["label"].to_numpy()
        found[pruner] = {
            "best": study.best_value,
            "unseen": float(right.mean()),
            "arguments": study.best_params,
            "row_epochs": study.row_epochs,
            "seconds": study.seconds,
        }
    found["share"] = found["asha"]["row_epochs"] / found["none"]["row_epochs"]
    again = {**found["none"]["arguments"], "seed": [1000 + number for number in range(5)]}
    study = tune(training, again, table, sampler="grid", **given)
    found["again"] = [trial.value for trial in study.optuna.trials]
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
        figures["halving"] = [halving(3 if quick else 27, seed=n) for n in range(DRAWS)]
        if quick:
            print(page(figures))
            return
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
    for _ in range(1 if quick else options.repeats):
        for name in names:
            figures[name].append(getattr(contest, name)())
        figures["packing"].append(packing(table, *((4, 2) if quick else (32, 20))))
    for draw in range(1 if quick else DRAWS):
        figures["halving"].append(halving(3 if quick else 27, seed=draw))
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
                "goal: ≤ 35",
            ],
        ],
    )
    draws = halving_draws(figures["halving"])
    head = "# Many networks at once\n\n" + str(__doc__).split("\n\n", 2)[2]
    return f"{head}\n{contest}\n\n{others}\n\n{draws}\n"


def halving_draws(runs: list[dict[str, Any]]) -> str:
    """What ASHA and the grid found in each draw, and whether the rule is met."""
    gaps = [run["none"]["best"] - run["asha"]["best"] for run in runs]
    noises = [statistics.stdev(run["again"]) for run in runs]
    reached = sum(gap <= noise for gap, noise in zip(gaps, noises, strict=True))
    is_met = statistics.median(gaps) <= statistics.median(noises)
    rows = [
        [
            f"draw {run['seed']}",
            f"{100 * run['share']:.1f} %",
            *(f"{run[name]['best']:.4f}" for name in ("none", "asha")),
            f"{gap:.4f}",
            f"{noise:.4f} ({min(run['again']):.4f}–{max(run['again']):.4f})",
            *(f"{run[name]['unseen']:.4f}" for name in ("none", "asha")),
        ]
        for run, gap, noise in zip(runs, gaps, noises, strict=True)
    ]
    header = ["", "row-epochs", "grid's best", "ASHA's best", "gap", "deviation over seeds (range)"]
    table = reporting.markdown([*header, "grid, unseen rows", "ASHA, unseen rows"], rows)
    return (
        f"ASHA has {'' if is_met else 'not '}reached the grid: the median gap is "
        f"{statistics.median(gaps):.4f}, the median deviation {statistics.median(noises):.4f}. "
        f"The gap is within the deviation in {reached} of {len(runs)} draws.\n\n{table}"
    )


if __name__ == "__main__":
    main()
