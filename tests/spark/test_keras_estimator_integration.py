"""KerasEstimator: what `train` gives, on Spark's workers, as a pyspark.ml stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import ParamGridBuilder
from pyspark.sql.functions import col
from tests.keras_models.cases import keras

from farandole import train
from farandole.errors import InputError
from farandole.spark import KerasEstimator, KerasModel, Tuner
from farandole.spark.grid_values import GridValue

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


def test_estimators_and_grids_are_saved_as_data(spark: SparkSession, tmp_path: Path) -> None:
    estimator = KerasEstimator(model=compiled(), epochs=3)
    estimator.save(str(tmp_path / "estimator"))
    loaded = KerasEstimator.load(str(tmp_path / "estimator"))
    assert loaded.getEpochs() == 3
    assert same_weights(loaded.getModel(), estimator.getModel())
    assert loaded.getModel().optimizer.get_config() == estimator.getModel().optimizer.get_config()
    (maps,) = ParamGridBuilder().addGrid(estimator.model, [compiled()]).build()
    maps[estimator.model].save(str(tmp_path / "value"))
    value = GridValue.load(str(tmp_path / "value"))
    assert same_weights(estimator.copy({estimator.model: value}).getModel(), estimator.getModel())


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_inputs_get_the_columns_of_their_names(flowers: DataFrame, tmp_path: Path) -> None:
    a, c = keras.Input((1,), name="a"), keras.Input((1,), name="c")
    joined = keras.layers.Concatenate()([a, c])
    outputs = {
        "kind": keras.layers.Dense(2, activation="softmax", name="kind")(joined),
        "size": keras.layers.Dense(1, name="size")(joined),
    }
    model = keras.Model({"c": c, "a": a}, outputs)
    model.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    rows = flowers.withColumnRenamed("label", "kind").withColumn("size", col("b"))
    fitted = KerasEstimator(model=model, labelCols=["kind", "size"], progress=False).fit(rows)
    fitted.save(str(tmp_path / "model"))
    found = KerasModel.load(str(tmp_path / "model")).transform(rows).toPandas()
    values = {name: found[[name]].to_numpy(np.float32) for name in "ac"}
    expected = fitted.network.predict(values, verbose=0)
    np.testing.assert_allclose(found.prediction_size, expected["size"][:, 0], rtol=1e-5)
    probability = np.stack([one.toArray() for one in found.probability_kind])
    np.testing.assert_allclose(probability, expected["kind"], rtol=1e-5)


def test_a_tuner_chooses_among_models(flowers: DataFrame) -> None:
    features = {"featuresCols": ["a", "b", "c"]}
    estimator = KerasEstimator(model=compiled(), epochs=1, validationFraction=0.2, **features)
    poor = compiled()
    poor.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", metrics=["accuracy"])
    space = {"model": [poor, compiled()]}
    tuner = Tuner(estimator=estimator, space=space, sampler="grid", metric="train_loss")
    found = tuner.fit(flowers).bestModel
    assert isinstance(found, KerasModel)
    assert found.history.learning_rate.tolist() == [pytest.approx(0.05)]


def test_what_is_missing_or_of_another_kind_is_told(flowers: DataFrame) -> None:
    with pytest.raises(InputError, match="model is not set"):
        KerasEstimator().fit(flowers)
    with pytest.raises(InputError, match=r"no param 'network'"):
        KerasEstimator(network=compiled())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"keras\.Model"):
        KerasEstimator(model=3)
