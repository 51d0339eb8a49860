"""Keras models wherever a torch module predicts: UDFs, SQL, features, files, the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

import farandole
from farandole.artifact import Signature, to_onnx, to_program
from farandole.commands.cli import main
from farandole.features import Cut, layers
from farandole.inference import Predictor
from farandole.keras_models import KerasNetwork, require_torch_backend
from farandole.serving.engines import choose_engine
from farandole.serving.model import Model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

keras = require_torch_backend()
L = keras.layers


class Doubled(L.Layer):  # type: ignore[misc]
    """A layer of one's own: it goes to workers, and is saved as a program."""

    def call(self, x: Any) -> Any:
        return 2 * x


def classifier() -> Any:
    layers = [L.Dense(8, activation="relu", name="hidden"), Doubled()]
    return keras.Sequential([keras.Input((4,)), *layers, L.Dense(3, activation="softmax")])


@pytest.fixture(scope="module")
def rows() -> Any:
    return np.random.default_rng(0).normal(size=(40, 4)).astype("float32")


def application() -> Any:
    return keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), include_top=False)


def test_layers_and_features_of_an_application(tmp_path: Path) -> None:
    """With weights of our own, as the guide has it: there is nothing to download."""
    trained, network = application(), application()
    trained.save_weights(tmp_path / "own.weights.h5")
    network.load_weights(tmp_path / "own.weights.h5")
    images = torch.rand(3, 32, 32, 3)
    found = layers(network)
    assert found[0].name == "Conv1"
    assert found[0].shape == (16, 16, 32)  # channels last
    cut = Cut(network, "block_1_expand").eval()
    with torch.no_grad():
        features = cut(images)
        oracle = keras.Model(trained.input, trained.get_layer("block_1_expand").output)(images)
    assert np.allclose(features, oracle.mean((1, 2)), atol=1e-5)


def test_exported_programs_give_equal_answers(rows: Any) -> None:
    model = classifier()
    about = Signature(
        features=("x",), shapes=((4,),), dtypes=("float32",), head="probabilities", outputs=3
    )
    program = to_program(KerasNetwork(model).eval(), about)
    expected = model.predict(rows, verbose=0)
    for some in (1, 2, 40):
        assert np.allclose(
            program(torch.from_numpy(rows[:some])).detach(), expected[:some], atol=1e-6
        )
    assert np.allclose(to_onnx(program)(torch.from_numpy(rows))[0], expected, atol=1e-6)
    assert "_assert_tensor_metadata" not in program.exported.graph_module.code

    served = Model("net", "1", Predictor(model, about))
    chosen = choose_engine(served, "exported", 8)
    assert np.allclose(chosen.predictor({"x": rows}).probability, expected, atol=1e-6)


def test_files_by_the_command_line(tmp_path: Path, rows: Any) -> None:
    model = classifier()
    farandole.save(model, tmp_path / "net", {"x": rows})
    plain = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="softmax")])
    plain.save(tmp_path / "net.keras")
    pd.DataFrame({"x": list(rows)}).to_parquet(tmp_path / "rows.parquet")
    for name, oracle in (("net", model), ("net.keras", plain)):
        out = tmp_path / f"{name}.parquet"
        given = ["--model", str(tmp_path / name), "--input", str(tmp_path / "rows.parquet")]
        named = ["--features", "x", "--output", str(out), "--answer", "probability", "--quiet"]
        assert main(["predict", *given, *named]) == 0
        found = np.stack(pq.read_table(out)["prediction"].to_pylist())
        assert np.allclose(found, oracle.predict(rows, verbose=0), atol=1e-5)


@pytest.mark.integration
def test_spark_columns_sql_and_features(spark: SparkSession, rows: Any) -> None:
    from farandole.spark import Featurizer

    model = classifier()
    frame = spark.createDataFrame(pd.DataFrame({"x": [row.tolist() for row in rows]}))
    expected = model.predict(rows, verbose=0)
    probability = farandole.predict_udf(model, answer="probability")
    found = frame.select(probability("x").alias("p")).toPandas()["p"]
    assert np.allclose(np.stack(list(found)), expected, atol=1e-5)

    frame.createOrReplaceTempView("keras_rows")
    farandole.register(spark, "keras_class", model, answer="class")
    classes = spark.sql("SELECT keras_class(x) AS c FROM keras_rows").toPandas()["c"]
    assert list(classes) == list(expected.argmax(1))

    featurizer = Featurizer(model=model, layer="hidden", inputCol="x", outputCol="f")
    vectors = np.stack([one.f.toArray() for one in featurizer.transform(frame).collect()])
    hidden = keras.Model(model.inputs, model.get_layer("hidden").output)
    assert np.allclose(vectors, hidden.predict(rows, verbose=0), atol=1e-5)
