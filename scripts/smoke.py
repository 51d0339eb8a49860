"""The smoke suite: what has to work on every version of Python and Spark that is supported.

    python scripts/smoke.py             on classic Spark
    python scripts/smoke.py --connect   on Spark Connect

Prints a line for each check: "passed" or "failed", its name, and the reason if it failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyspark.ml import classification as spark_ml
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import DataFrame, SparkSession
from torch import nn

import farandole
from farandole.spark import Featurizer, TorchEstimator, TorchModel
from farandole.spark.classification import MultilayerPerceptronClassifier


class ClusterAndSum(nn.Module):
    """Two heads: the class of a point, and the sum of its coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.label = nn.Linear(2, 3)
        self.total = nn.Linear(2, 1)

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """A tensor for each head, by its name."""
        return {"label": self.label(features), "total": self.total(features)}


@dataclass
class Smoke:
    """The checks, in their order: a later one uses what an earlier one made."""

    rows: DataFrame
    folder: Path
    model: TorchModel | None = None

    def fit(self) -> None:
        """Two workers learn three clusters."""
        network = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        estimator = TorchEstimator(
            network=network, learningRate=0.05, epochs=5, batchSize=16, numWorkers=2, seed=1
        )
        self.model = estimator.setParams(progress=False).fit(self.rows)
        losses = self.model.history["train_loss"]
        assert losses.iloc[-1] < losses.iloc[0], f"the loss went from {list(losses)}"

    def transform(self) -> None:
        """The clusters are told apart."""
        found = self.model.transform(self.rows).select("label", "prediction").collect()
        accuracy = np.mean([row.label == row.prediction for row in found])
        assert accuracy > 0.9, f"accuracy {accuracy:.2f}"

    def save(self) -> None:
        """Weights and signature are written, and nothing that a loader would have to run."""
        self.model.write().save(str(self.folder / "model"))
        written = {file.suffix for file in (self.folder / "model").rglob("*") if file.is_file()}
        assert ".safetensors" in written, f"only {sorted(written)}"

    def load(self) -> None:
        """What is loaded predicts the same."""
        loaded = TorchModel.load(str(self.folder / "model"))
        np.testing.assert_array_equal(self._raw(loaded), self._raw(self.model))

    def perceptron(self) -> None:
        """Spark ML's own perceptron finds the same weights."""
        rows = self.rows.select(array_to_vector("features").alias("features"), "label").coalesce(1)
        settings = {"layers": [2, 4, 3], "maxIter": 10, "seed": 1}
        theirs = spark_ml.MultilayerPerceptronClassifier(**settings).fit(rows)
        ours = MultilayerPerceptronClassifier(**settings).fit(rows)
        np.testing.assert_allclose(ours.weights.toArray(), theirs.weights.toArray(), atol=1e-6)

    def predict_udf(self) -> None:
        """As a function of a column the network answers what `transform` does."""
        probability = farandole.predict_udf(self.model, answer="probability")
        asked = self.rows.select("id", probability("features").alias("p")).orderBy("id").collect()
        answers = self.model.transform(self.rows).orderBy("id").collect()
        expected = [row.probability.toArray() for row in answers]
        np.testing.assert_allclose([np.asarray(row.p) for row in asked], expected, rtol=1e-5)

    def heads(self) -> None:
        """Two heads learn a label each, and predict it in columns of their own."""
        rows = self.rows.selectExpr("*", "double(features[0] + features[1]) AS total")
        estimator = TorchEstimator(
            network=ClusterAndSum(),
            labelCols=["label", "total"],
            loss={"label": "cross_entropy", "total": "mse"},
            learningRate=0.05,
            epochs=20,
            batchSize=16,
            numWorkers=2,
            seed=1,
        )
        model = estimator.setParams(progress=False).fit(rows)
        model.write().save(str(self.folder / "heads"))
        found = TorchModel.load(str(self.folder / "heads")).transform(rows).collect()
        accuracy = np.mean([row.label == row.prediction_label for row in found])
        error = np.mean([abs(row.total - row.prediction_total) for row in found])
        assert accuracy > 0.9, f"accuracy {accuracy:.2f}"
        assert error < 0.2, f"mean error {error:.2f}"

    def featurizer(self) -> None:
        """The hidden layer of a network, against NumPy's product."""
        network = self.model.network
        stage = Featurizer(model=network, layer="1", inputCol="features", outputCol="hidden")
        found = stage.transform(self.rows).collect()
        weight, bias = (one.detach().numpy() for one in network[0].parameters())
        expected = np.maximum(np.asarray([row.features for row in found]) @ weight.T + bias, 0)
        np.testing.assert_allclose([row.hidden.toArray() for row in found], expected, atol=1e-5)

    def train(self) -> None:
        """Two processes of this machine learn the same without Spark."""
        table = self.rows.select("features", "label").toPandas()
        network = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        result = farandole.train(
            network,
            table,
            epochs=5,
            batch_size=16,
            learning_rate=0.05,
            num_workers=2,
            seed=1,
            loss="cross_entropy",
            engine="local",
            progress=False,
        )
        losses = result.history["train_loss"]
        assert losses.iloc[-1] < losses.iloc[0], f"the loss went from {list(losses)}"

    def _raw(self, model: TorchModel) -> list[list[float]]:
        raw = vector_to_array("rawPrediction").alias("raw")
        return [row.raw for row in model.transform(self.rows).orderBy("id").select(raw).collect()]


CHECKS: tuple[Callable[[Smoke], None], ...] = (
    Smoke.fit,
    Smoke.transform,
    Smoke.save,
    Smoke.load,
    Smoke.perceptron,
    Smoke.predict_udf,
    Smoke.heads,
    Smoke.featurizer,
    Smoke.train,
)


def clusters(spark: SparkSession) -> DataFrame:
    """Three clouds of points: id, features, label."""
    random = np.random.default_rng(0)
    labels = np.arange(300) % 3
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    points = (centres[labels] + random.normal(size=(300, 2))).astype(np.float32)
    table = {"id": np.arange(300), "features": list(points), "label": labels.astype(np.float64)}
    return spark.createDataFrame(pa.table(table)).repartition(3)


def start(*, connect: bool) -> SparkSession:
    """A session with two slots, whose workers run this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder
    for quiet in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(quiet, "false")
    builder = builder.remote("local[2]") if connect else builder.master("local[2]")
    return builder.getOrCreate()


def main() -> int:
    """Run every check; the exit code says whether all passed."""
    spark = start(connect="--connect" in sys.argv[1:])
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        smoke = Smoke(clusters(spark), Path(folder))
        for check in CHECKS:
            try:
                if smoke.model is None and check is not Smoke.fit:
                    raise RuntimeError("needs the network of fit")
                check(smoke)
                print(f"passed {check.__name__}", flush=True)
            except Exception as error:
                failed += 1
                reason = (str(error).strip() or "no message").splitlines()[0]
                print(f"failed {check.__name__} {type(error).__name__}: {reason}", flush=True)
    spark.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
