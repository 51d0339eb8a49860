"""A perceptron for numbers, against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import Vectors
from sklearn.linear_model import LinearRegression
from tests.spark.perceptrons import Array, frame, standardised

from farandole.errors import InputError
from farandole.spark.regression import (
    MultilayerPerceptronRegressionModel,
    MultilayerPerceptronRegressor,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration


def diabetes() -> tuple[Array, Array]:
    x, y = standardised("diabetes")
    return x, (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> DataFrame:
    return frame(spark, *diabetes(), partitions=2)


@pytest.fixture(scope="module")
def linear(data: DataFrame) -> MultilayerPerceptronRegressionModel:
    regressor = MultilayerPerceptronRegressor(layers=[10, 1], seed=1, maxIter=200, tol=1e-12)
    return regressor.setBlockSize(1000).fit(data)


def test_without_hidden_layers_it_is_scikit_learns_regression(
    data: DataFrame, linear: MultilayerPerceptronRegressionModel
) -> None:
    x, y = diabetes()
    # Blocks end with partitions, and both have 221 rows: the mean of their means is the mean.
    expected = LinearRegression().fit(x, y)
    np.testing.assert_allclose(linear.weights[:10], expected.coef_, atol=1e-4)
    assert linear.weights[10] == pytest.approx(expected.intercept_, abs=1e-4)
    residuals = y - expected.predict(x)
    assert linear.objectiveHistory[-1] == pytest.approx(np.mean(residuals**2), rel=1e-8)
    rows = linear.transform(data).select("features", "prediction").collect()
    found = np.array([row.prediction for row in rows])
    features = np.array([row.features.toArray() for row in rows])
    np.testing.assert_allclose(found, expected.predict(features), atol=1e-3)
    row = Vectors.dense(x[7])
    assert linear.predict(row) == pytest.approx(expected.predict(x[7:8])[0], abs=1e-3)
    assert linear.numFeatures == 10
    assert "numOutputs=1" in repr(linear)


def test_the_first_objective_is_torchs(data: DataFrame) -> None:
    x, y = diabetes()
    start = np.random.default_rng(0).normal(size=10 * 4 + 4 + 4 + 1)
    model = MultilayerPerceptronRegressor(
        layers=[10, 4, 1],
        activation="tanh",
        initialWeights=Vectors.dense(start),
        blockSize=1000,
        maxIter=30,
    ).fit(data)
    first, bias = torch.tensor(start[:40]).reshape(10, 4), torch.tensor(start[40:44])
    hidden = torch.tanh(torch.tensor(x) @ first + bias)
    output = hidden @ torch.tensor(start[44:48]) + start[48]
    loss = torch.nn.functional.mse_loss(output, torch.tensor(y))
    assert model.objectiveHistory[0] == pytest.approx(float(loss), rel=1e-10)
    assert model.objectiveHistory[-1] < 0.5


def test_two_outputs(data: DataFrame, tmp_path: Path) -> None:
    x, y = diabetes()
    pairs = vector_to_array("features")
    both = data.selectExpr("features", "array(label, 2 * label + 1) as goals")
    params: dict[str, Any] = {"layers": [10, 2], "labelCol": "goals", "seed": 1, "maxIter": 200}
    regressor = MultilayerPerceptronRegressor(tol=1e-12, blockSize=1000, **params)
    model = regressor.fit(both.select("features", array_to_vector("goals").alias("goals")))
    expected = LinearRegression().fit(x, np.c_[y, 2 * y + 1])
    rows = model.transform(both).select(pairs.alias("features"), "prediction").collect()
    found = np.array([row.prediction.toArray() for row in rows])
    wanted = expected.predict(np.array([row.features for row in rows]))
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    np.testing.assert_allclose(
        model.predict(Vectors.dense(x[3])), expected.predict(x[3:4])[0], atol=1e-3
    )
    with pytest.raises(InputError, match="label"):
        MultilayerPerceptronRegressor(layers=[10, 3], labelCol="goals").fit(both)


def test_persistence(
    data: DataFrame, linear: MultilayerPerceptronRegressionModel, tmp_path: Path
) -> None:
    linear.save(str(tmp_path / "model"))
    loaded = MultilayerPerceptronRegressionModel.load(str(tmp_path / "model"))
    assert loaded.weights == linear.weights
    assert loaded.uid == linear.uid
    assert loaded.objectiveHistory == []
    assert loaded.getLayers() == [10, 1]
    mine, other = (m.transform(data).select("prediction").collect() for m in (linear, loaded))
    assert mine == other
    regressor = MultilayerPerceptronRegressor(layers=[10, 1], activation="relu", numWorkers=2)
    regressor.save(str(tmp_path / "regressor"))
    again = MultilayerPerceptronRegressor.load(str(tmp_path / "regressor"))
    assert (again.getLayers(), again.getActivation(), again.getNumWorkers()) == ([10, 1], "relu", 2)


def test_bad_rows(data: DataFrame) -> None:
    spoiled = data.selectExpr("features", "if(label > 2, null, label) as label")
    count = spoiled.where("label is null").count()
    with pytest.raises(InputError, match=f"Labels MUST NOT be Null or NaN \\({count} rows"):
        MultilayerPerceptronRegressor(layers=[10, 1], maxIter=1).fit(spoiled)
