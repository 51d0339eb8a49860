"""Several heads, a class for each position, losses of one's own and no label, all on Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from sklearn.datasets import load_digits
from tests.spark.samples import frame, small_network
from torch import nn
from torch.nn import functional as F

import farandole
from farandole.errors import InputError
from farandole.spark import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

ROWS = 200
DIGITS = load_digits()
PIXELS = (DIGITS.data[:ROWS] / 16).astype(np.float32)


class DigitAndInk(nn.Module):
    """Which digit an image shows, and how much ink it took."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.digit = nn.Linear(64, 32), nn.Linear(32, 10)
            self.ink = nn.Linear(32, 1)

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.body(features))
        return {"digit": self.digit(hidden), "ink": self.ink(hidden)}


def digits(spark: SparkSession) -> DataFrame:
    rows = [
        (number, pixels.tolist(), float(digit), float(pixels.mean()))
        for number, (pixels, digit) in enumerate(zip(PIXELS, DIGITS.target[:ROWS], strict=True))
    ]
    schema = "id int, features array<float>, digit double, ink double"
    return spark.createDataFrame(rows, schema).repartition(2)


def fitted(data: Any, **params: Any) -> TorchModel:
    given = {"learningRate": 0.02, "batchSize": 40, "progress": False}
    return TorchEstimator(**given | params).fit(data)


def test_two_heads_end_to_end(spark: SparkSession, tmp_path: Path) -> None:
    data = digits(spark)
    model = fitted(
        data,
        network=DigitAndInk(),
        labelCols=["digit", "ink"],
        loss={"digit": "cross_entropy", "ink": "mse"},
        lossWeights={"ink": 0.5},
        metrics={"digit": ["accuracy", "auc"], "ink": ["r2"]},
        validationFraction=0.2,
        epochs=15,
        numWorkers=2,
    )
    last = model.history.iloc[-1]
    assert last["validation_digit_accuracy"] > 0.6
    assert last["train_loss"] == pytest.approx(
        last["train_digit_loss"] + 0.5 * last["train_ink_loss"]
    )
    shown = model.transform(data)
    added = [name for name in shown.columns if name not in data.columns]
    assert added == [
        *("rawPrediction_digit", "probability_digit", "prediction_digit", "prediction_ink")
    ]
    rows = shown.orderBy("id").collect()
    with torch.no_grad():
        output = model.network(torch.tensor(PIXELS))
    digit = output["digit"].argmax(1).numpy()
    assert [row.prediction_digit for row in rows] == digit.tolist()
    np.testing.assert_allclose(
        [row.prediction_ink for row in rows], output["ink"][:, 0].numpy(), rtol=1e-5
    )
    probability = np.stack([row.probability_digit.toArray() for row in rows])
    np.testing.assert_allclose(probability, output["digit"].double().softmax(1), rtol=1e-4)
    evaluator = MulticlassClassificationEvaluator(
        labelCol="digit", predictionCol="prediction_digit", metricName="accuracy"
    )
    assert evaluator.evaluate(shown) > 0.8
    model.write().save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.transform(data).orderBy("id").collect() == rows
    predict = farandole.predict_udf(loaded)
    assert predict.returns == "struct<`digit`: double, `ink`: double>"
    found = data.select("id", predict("features").alias("p")).orderBy("id").collect()
    assert [row.p.digit for row in found] == digit.tolist()
    with pytest.raises(InputError, match="'ink': 'probability' needs a classifier"):
        farandole.predict_udf(loaded, answer="probability")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.classes = nn.Embedding(6, 8), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classes(self.embedding(tokens)).transpose(1, 2)


def test_a_class_for_each_position(spark: SparkSession, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 6, (80, 4))
    rows = [(n, row.tolist(), (row % 3).tolist()) for n, row in enumerate(tokens)]
    data = spark.createDataFrame(rows, "id int, features array<int>, label array<int>")
    network = Tagger()
    model = fitted(data, network=network, epochs=30, learningRate=0.1)
    shown = model.transform(data)
    types = dict(shown.dtypes)
    assert types["prediction"] == "array<double>"
    assert types["probability"] == types["rawPrediction"] == "array<array<double>>"
    found = shown.orderBy("id").collect()
    np.testing.assert_array_equal([row.prediction for row in found], tokens % 3)
    with torch.no_grad():
        expected = model.network(torch.tensor(tokens)).double().softmax(1)
    probability = np.array([row.probability for row in found])  # [row][position][class]
    np.testing.assert_allclose(probability, expected.transpose(1, 2), rtol=1e-4, atol=1e-7)
    model.write().save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    names = farandole.predict_udf(loaded, labels=["low", "mid", "high"])
    assert names.returns == "array<string>"
    first = data.select(names("features").alias("p")).where("id = 0").first()
    assert first is not None
    assert first.p == [["low", "mid", "high"][token % 3] for token in tokens[0]]
    with pytest.raises(InputError, match='"topk" is for one class a row'):
        farandole.predict_udf(loaded, answer="topk")


def focal(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    entropy = F.cross_entropy(output, target.long(), reduction="none")
    return (1 - (-entropy).exp()) ** 2 * entropy


def test_a_loss_of_ones_own_and_sparks_evaluator(spark: SparkSession) -> None:
    data = frame(spark).selectExpr("features", "double(label) AS label")
    model = fitted(data, network=small_network(), loss=focal, epochs=20)
    shown = model.transform(data)
    assert {"rawPrediction", "probability", "prediction"} <= set(shown.columns)
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(shown) > 0.5


def test_no_label_column(spark: SparkSession) -> None:
    data = digits(spark).select("features")
    network = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 64))
    model = fitted(data, network=network, labelCol=None, loss="mse", epochs=5)
    assert model.history["train_loss"].iloc[-1] < model.history["train_loss"].iloc[0]
    assert model.transform(data).first().prediction.size == 64


class RaggedTagger(Tagger):
    ragged_axes = (1,)

    def forward(self, tokens: Any) -> Any:
        return replace(tokens, values=self.classes(self.embedding(tokens.values)))


def test_a_class_for_each_position_of_rows_that_differ_in_length(spark: SparkSession) -> None:
    random = np.random.default_rng(0)
    tokens = [random.integers(0, 6, 1 + number % 5).tolist() for number in range(60)]
    rows = [(number, row, [token % 3 for token in row]) for number, row in enumerate(tokens)]
    data = spark.createDataFrame(rows, "id int, features array<int>, label array<int>")
    model = fitted(data, network=RaggedTagger(), allowPickle=True, epochs=40, learningRate=0.1)
    shown = model.transform(data)
    assert dict(shown.dtypes)["probability"] == "array<array<double>>"
    found = shown.orderBy("id").collect()
    assert [row.prediction for row in found] == [row.label for row in found]
    assert [len(row.probability) for row in found] == [len(row) for row in tokens]


def test_what_takes_one_prediction_a_row_refuses_several_heads(spark: SparkSession) -> None:
    loss = {"digit": "cross_entropy", "ink": "mse"}
    data = digits(spark)
    model = fitted(data, network=DigitAndInk(), labelCols=["digit", "ink"], loss=loss, epochs=1)
    with pytest.raises(InputError, match="predict gives one class or value a row"):
        model.predict(PIXELS[0])
    with pytest.raises(InputError, match="metrics of one label and one prediction"):
        model.evaluate(data)
    with pytest.raises(InputError, match="thresholds are for one class a row"):
        model.setThresholds([0.1] * 10).transform(data)


def test_a_function_that_makes_a_network_does_not_hide_why_there_are_no_rows(
    spark: SparkSession,
) -> None:
    broken = digits(spark).selectExpr("features", "double(raise_error('upstream')) AS label")
    with pytest.raises(Exception, match="upstream"):
        fitted(broken, network=lambda inputs: nn.Linear(inputs.width, 10), epochs=1)
