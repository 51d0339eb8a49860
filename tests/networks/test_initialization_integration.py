from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from farandole.networks import MLP, load_spark_weights, spark_weights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYERS, SEED = [2, 7, 5, 3], -12345678901


@pytest.mark.integration
def test_spark_itself_begins_with_these_weights(spark: SparkSession) -> None:
    from pyspark.ml.classification import MultilayerPerceptronClassifier
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense(0.5 * i, 1.0 - i), float(i % 3)) for i in range(6)]
    frame = spark.createDataFrame(rows, ["features", "label"])
    # A step too small to be one: what is learned is what was begun with.
    model = MultilayerPerceptronClassifier(
        layers=LAYERS, seed=SEED, solver="gd", stepSize=1e-300, maxIter=1
    ).fit(frame)

    assert np.array_equal(model.weights.toArray(), spark_weights(LAYERS, SEED))

    mlp = MLP(LAYERS, "sigmoid", output="softmax").double()
    load_spark_weights(mlp, model.weights.toArray())
    predicted = [row.probability.toArray() for row in model.transform(frame).collect()]
    inputs = torch.tensor(np.array([row[0].toArray() for row in rows]))
    np.testing.assert_allclose(mlp(inputs).detach(), predicted, rtol=1e-9)
