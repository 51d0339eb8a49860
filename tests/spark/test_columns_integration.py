"""How columns reach workers: vectors as arrays, many numbers as one array, the first rows first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import OneHotEncoder, StringIndexer, VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F
from tests.clusters import in_a_process
from torch import nn

import farandole
from farandole.data import Columns, placed_rows
from farandole.data.first_rows import first_rows, narrow_vectors
from farandole.data.source import stream_source
from farandole.errors import InputError, WorkerFailed
from farandole.spark import TorchEstimator
from farandole.training import NetworkInputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

X = np.random.default_rng(0).normal(size=(40, 4)) * (np.arange(40)[:, None] % 3 > 0)
LABELS = np.arange(40) % 2


def vectors(session: SparkSession) -> DataFrame:
    """Give dense and sparse ones in turn."""
    rows = [
        (Vectors.dense(x) if i % 2 else Vectors.sparse(4, np.flatnonzero(x), x[x != 0]), int(y))
        for i, (x, y) in enumerate(zip(X, LABELS, strict=True))
    ]
    return session.createDataFrame(rows, ["features", "label"])


def test_vectors_are_trained_on_as_arrays_are(spark: SparkSession) -> None:
    network, options = nn.Linear(4, 2), {"batch_size": 40, "epochs": 2, "progress": False}
    found = farandole.train(network, vectors(spark), num_workers=2, **options)
    plain = farandole.train(network, (X.astype(np.float32), LABELS), engine="local", **options)
    np.testing.assert_allclose(found.steps["loss"], plain.steps["loss"], rtol=1e-5)


def test_workers_get_vectors_as_arrays_unless_they_are_wide_and_sparse(spark: SparkSession) -> None:
    wide, narrow = Vectors.sparse(100_000, [7], [1.0]), Vectors.sparse(3, [1], [2.0])
    frame = spark.createDataFrame([(wide, narrow, 1), (None, None, 0)], ["wide", "narrow", "y"])
    columns = Columns(("wide", "narrow"), ("y",))
    first = first_rows(stream_source(frame), columns.names, frame)
    assert first is not None
    assert first.vectors == ("narrow",)
    rows = placed_rows(frame, columns, 1, shuffle=True, vectors=first.vectors, floating="float32")
    types = dict(rows.dtypes)
    assert (types["column_0"], types["column_1"]) == ("vector", "array<float>")
    assert sorted(rows.select("column_1", "column_2").collect(), key=lambda row: row[1]) == [
        (None, 0),
        ([0.0, 2.0, 0.0], 1),
    ]


def test_vectors_that_are_known_to_be_narrow_need_no_row(spark: SparkSession) -> None:
    numbers = spark.createDataFrame([(1.0, 2.0)], ["a", "b"])
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(numbers)
    schema = stream_source(frame).schema()
    assert narrow_vectors(frame, schema, frame.columns) == ("features",)
    unknown = vectors(spark)
    assert narrow_vectors(unknown, stream_source(unknown).schema(), ["features"]) == ()


def test_null_vectors_are_counted_and_told(spark: SparkSession) -> None:
    frame = vectors(spark).withColumn("features", F.expr("if(label = 1, null, features)"))
    with pytest.raises(InputError, match="'features': 20 rows have null"):
        farandole.train(nn.Linear(4, 2), frame, progress=False)


def test_null_vectors_in_transform_are_told_in_a_sentence(spark: SparkSession) -> None:
    model = TorchEstimator(network=nn.Linear(4, 2), progress=False).fit(vectors(spark))
    holes = vectors(spark).withColumn("features", F.expr("if(label = 1, null, features)"))
    with pytest.raises(Exception, match="null") as caught:
        model.transform(holes).collect()
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_error_of_a_worker_is_shown_without_frames_of_ours(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerFailed, match="KeyError: 'missing'") as caught:
        farandole.run({}.__getitem__, ("missing",), num_workers=1)
    assert caught.value.__suppress_context__
    printed = capfd.readouterr().err
    assert "spark_task.py" not in printed
    assert "<farandole:" not in printed


def test_many_columns_travel_as_one_and_are_the_same(spark: SparkSession) -> None:
    table = pd.DataFrame(np.random.default_rng(1).normal(size=(50, 100)).astype(np.float32))
    table.columns = [f"c.{number}" for number in range(100)]
    table.insert(50, "age", np.arange(50))
    table["label"] = np.arange(50) % 2
    features = [name for name in table.columns if name != "label"]
    frame = spark.createDataFrame(table)
    rows = placed_rows(frame, Columns(tuple(features), ("label",)), 2, shuffle=True)
    assert len(rows.columns) == 4  # the numbers, the age, the label and the key
    options: dict[str, Any] = {"features": features, "batch_size": 50, "progress": False}
    network = nn.Linear(101, 2)
    found = farandole.train(network, frame, num_workers=2, **options)
    plain = farandole.train(network, table, engine="local", **options)
    np.testing.assert_allclose(found.steps["loss"], plain.steps["loss"], rtol=1e-5)
    model = TorchEstimator(
        network=network, featuresCols=features, batchSize=50, progress=False
    ).fit(frame)
    raw = np.stack(
        [row[0].toArray() for row in model.transform(frame).select("rawPrediction").collect()]
    )
    order = np.argsort([row[0] for row in frame.select("age").collect()])
    expected = model.network(torch.from_numpy(table[features].to_numpy(np.float32)))
    np.testing.assert_allclose(raw[order], expected.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_a_wrong_size_is_told_before_all_rows_are_read(spark: SparkSession) -> None:
    endless = spark.range(10**15).selectExpr("array(1D, 2D) AS features", "0 AS label")
    with pytest.raises(InputError, match=r"'features' with shape \(2,\)"):
        TorchEstimator(network=nn.Linear(3, 2), progress=False).fit(endless)


def test_a_network_is_made_for_the_width_that_each_fold_has(spark: SparkSession) -> None:
    colors = ["red", "green", "blue", "black"]
    rows = [(colors[i % 4], float(i % 2)) for i in range(60)]
    frame = spark.createDataFrame(rows, ["color", "label"])
    widths: list[int] = []

    def make(inputs: NetworkInputs) -> nn.Module:
        widths.append(inputs.width)
        return nn.Linear(inputs.width, 2)

    estimator = TorchEstimator(network=make, featuresCol="one_hot", epochs=1, progress=False)
    indexer = StringIndexer(inputCol="color", outputCol="index", handleInvalid="keep")
    encoder = OneHotEncoder(inputCol="index", outputCol="one_hot")
    stages = Pipeline(stages=[indexer, encoder, estimator])
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [0.1]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    search = CrossValidator(
        estimator=stages, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2
    )
    best = search.fit(frame).bestModel
    assert widths[-1] == 4
    assert best.transform(frame).count() == 60
    fewer = stages.fit(frame.where("color != 'red'"))
    assert widths[-1] == 3
    assert fewer.stages[-1].network.in_features == 3


def test_a_function_is_told_the_classes_that_an_indexer_has_found(spark: SparkSession) -> None:
    indexer = StringIndexer(inputCol="name", outputCol="label")
    frame = spark.createDataFrame([(float(i), "abc"[i % 3]) for i in range(9)], ["x", "name"])
    indexed = indexer.fit(frame).transform(frame)
    model = TorchEstimator(
        network=lambda inputs: nn.Linear(inputs.width, inputs.classes),
        featuresCol="x",
        progress=False,
    ).fit(indexed)
    assert model.numClasses == 3


@pytest.mark.exhaustive  # a JVM of its own, and Spark's planning of ten thousand columns
@pytest.mark.timeout(400)
def test_ten_thousand_columns_with_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    script = Path(__file__).with_name("wide_table_script.py")
    found, _ = in_a_process(script, folder=tmp_path, seconds=380)
    assert found["rows"] == 64
    assert found["difference"] < 1e-4
