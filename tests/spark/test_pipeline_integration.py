"""Beside the stages, tuners and evaluators of Spark ML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
    TrainValidationSplit,
)
from sklearn.datasets import load_iris
from sklearn.metrics import accuracy_score, roc_auc_score
from tests.spark.samples import frame, small_network
from torch import nn

from farandole.spark import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

NAMES = ["sepal length", "sepal width", "petal length", "petal width"]


@pytest.fixture(scope="module")
def iris(spark: SparkSession) -> DataFrame:
    found = load_iris()
    rows = [
        (*map(float, x), str(found.target_names[y]))
        for x, y in zip(found.data, found.target, strict=True)
    ]
    return spark.createDataFrame(rows, [*NAMES, "species"])


def estimator(**params: Any) -> TorchEstimator:
    given = {"network": small_network(), "batchSize": 32, "progress": False}
    return TorchEstimator(**given | params)


def test_pipeline(iris: DataFrame, tmp_path: Path) -> None:
    pipeline = Pipeline(
        stages=[
            StringIndexer(inputCol="species", outputCol="label", stringOrderType="alphabetAsc"),
            VectorAssembler(inputCols=NAMES, outputCol="measured"),
            StandardScaler(inputCol="measured", outputCol="features", withMean=True),
            estimator(epochs=15, learningRate=0.05, numWorkers=2),
        ]
    )
    pipeline.write().save(str(tmp_path / "pipeline"))
    again = Pipeline.load(str(tmp_path / "pipeline"))
    assert again.getStages()[-1].getEpochs() == 15

    model = again.fit(iris)
    found = model.transform(iris)
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(found)
    table = found.select("label", "prediction").toPandas()
    assert accuracy == pytest.approx(accuracy_score(table["label"], table["prediction"]))
    assert accuracy > 0.93
    loss = MulticlassClassificationEvaluator(metricName="logLoss").evaluate(found)
    assert 0 < loss < 0.3

    model.write().overwrite().save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model"))
    assert isinstance(loaded.stages[-1], TorchModel)
    assert loaded.transform(iris).select("prediction").collect() == [
        (value,) for value in table["prediction"]
    ]


def test_cross_validator(spark: SparkSession, tmp_path: Path) -> None:
    one = estimator(epochs=3)
    networks = ParamGridBuilder().addGrid(one.network, [small_network()])
    grid = networks.addGrid(one.learningRate, [1e-9, 0.05]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    tuner = CrossValidator(
        estimator=one,
        estimatorParamMaps=grid,
        evaluator=evaluator,
        numFolds=2,
        parallelism=2,
        seed=1,
    )
    data = frame(spark, 200).cache()
    model = tuner.fit(data)
    assert model.avgMetrics[1] > model.avgMetrics[0] + 0.1
    best = model.bestModel
    assert isinstance(best, TorchModel)
    assert best.history["learning_rate"].iloc[0] == pytest.approx(0.05)
    assert best.extractParamMap()[one.learningRate] == best.getLearningRate() == 0.05
    assert best.extractParamMap()[one.network] is grid[1][one.network].value

    model.write().save(str(tmp_path / "tuned"))
    loaded = CrossValidatorModel.load(str(tmp_path / "tuned"))
    assert loaded.avgMetrics == pytest.approx(model.avgMetrics)
    assert evaluator.evaluate(loaded.transform(data)) == evaluator.evaluate(model.transform(data))


def test_train_validation_split_over_networks(spark: SparkSession) -> None:
    one = estimator(loss="binary_cross_entropy", learningRate=0.1)
    blind = nn.Sequential(nn.Linear(4, 1, bias=False))
    nn.init.zeros_(blind[0].weight)  # type: ignore[arg-type]
    blind.requires_grad_(False)
    blind.append(nn.Linear(1, 1))
    grid = (
        ParamGridBuilder()
        .addGrid(one.network, [blind, small_network(1)])
        .addGrid(one.epochs, [6])
        .build()
    )
    data = frame(spark, 200).selectExpr("features", "double(label = 2) AS label").cache()
    evaluator = BinaryClassificationEvaluator(rawPredictionCol="rawPrediction")
    model = TrainValidationSplit(
        estimator=one, estimatorParamMaps=grid, evaluator=evaluator, seed=1
    ).fit(data)
    assert model.validationMetrics[0] == pytest.approx(0.5)
    assert model.validationMetrics[1] > 0.9
    found = model.transform(data)
    scores = [row.rawPrediction[1] for row in found.collect()]
    labels = [row.label for row in found.collect()]
    assert evaluator.evaluate(found) == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)
    assert isinstance(model.bestModel.network[1], nn.Tanh)


def test_regression_evaluator(spark: SparkSession) -> None:
    data = frame(spark).selectExpr("features", "features[0] * 2 - 1 AS label")
    network = nn.Linear(4, 1)
    model = estimator(network=network, loss="mse", learningRate=0.1, epochs=8).fit(data)
    rows = model.transform(data).collect()
    with torch.no_grad():
        values = model.network(torch.tensor([row.features for row in rows]))[:, 0].numpy()
    error = float(np.sqrt(np.mean((values - [row.label for row in rows]) ** 2)))
    found = RegressionEvaluator(metricName="rmse").evaluate(model.transform(data))
    assert found == pytest.approx(error, rel=1e-4)
    assert found < 1.0
