"""KerasEstimator: what `train` gives, on Spark's workers, as a pyspark.ml stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from tests.keras_models.cases import keras

from farandole import train
from farandole.errors import InputError
from farandole.spark import KerasEstimator, KerasModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def flowers(spark: SparkSession) -> DataFrame:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 3))
    rows = [(*map(float, one), float(one.sum() > 0)) for one in values]
    return spark.createDataFrame(rows, "a double, b double, c double, label double")


def compiled(loss: str = "binary_crossentropy") -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return model


def test_a_pipeline_trains_and_predicts_as_train_does(flowers: DataFrame) -> None:
    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=50)
    estimator = KerasEstimator(
        model=compiled(), epochs=3, batchSize=8, numWorkers=2, progress=False, callbacks=[stopping]
    )
    assembler = VectorAssembler(inputCols=["a", "b", "c"], outputCol="features")
    fitted = Pipeline(stages=[assembler, estimator]).fit(flowers)
    model = fitted.stages[-1]
    assert isinstance(model, KerasModel)
    assert isinstance(model.network, keras.Model)
    assert model.network.compiled
    assert model.getEpochs() == 3
    found = fitted.transform(flowers).toPandas()
    values = np.stack([found[name] for name in "abc"], axis=1).astype(np.float32)
    expected = model.network.predict(values, verbose=0)[:, 0]
    np.testing.assert_allclose([one[1] for one in found.probability], expected, rtol=1e-5)
    np.testing.assert_array_equal(found.prediction, expected > 0.5)
    rows = assembler.transform(flowers)
    alone = train(compiled(), rows, epochs=3, batch_size=8, progress=False)
    np.testing.assert_allclose(model.history.train_loss, alone.history.train_loss, rtol=1e-5)
    assert model.history.train_accuracy.iloc[-1] > 0.6


def test_params_count_more_than_the_compiled_model(flowers: DataFrame) -> None:
    params = {"featuresCols": ["a", "b", "c"], "epochs": 1, "progress": False}
    model = KerasEstimator(
        model=compiled(), optimizer="sgd", learningRate=0.25, loss="mse", metrics=["mae"], **params
    ).fit(flowers)
    assert model.history.learning_rate.tolist() == [0.25]
    assert "train_mae" in model.history
    assert model.signature.head == "identity"


def test_what_is_missing_or_of_another_kind_is_told(flowers: DataFrame) -> None:
    with pytest.raises(InputError, match="model is not set"):
        KerasEstimator().fit(flowers)
    with pytest.raises(InputError, match=r"no param 'network'"):
        KerasEstimator(network=compiled())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"keras\.Model"):
        KerasEstimator(model=3)
