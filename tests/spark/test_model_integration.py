"""TorchModel.transform beside Spark ML's own models and the network called by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.errors import PythonException
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.regression import LinearRegression
from pyspark.sql import functions as F
from tests.spark.samples import classes, frame, small_network
from torch import nn

from farandole.artifact import Artifact, Signature
from farandole.errors import InputError
from farandole.spark import TorchModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

pytestmark = pytest.mark.integration


def model_of(network: nn.Module, head: str, outputs: int) -> TorchModel:
    signature = Signature(
        features=("features",), shapes=((4,),), dtypes=("float32",), head=head, outputs=outputs
    )
    return TorchModel(Artifact(network, signature))


@pytest.fixture
def classifier() -> TorchModel:
    return model_of(small_network(), "softmax", 3)


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> DataFrame:
    return frame(spark).repartition(3).cache()


def by_hand(network: nn.Module, rows: int = 120) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = network(torch.tensor(classes(rows)[0])).double()
    return scores


def test_a_classifier_gives_what_the_network_gives(data: DataFrame, classifier: TorchModel) -> None:
    rows = classifier.transform(data).orderBy("id").collect()
    scores = by_hand(classifier.network)
    raw = np.stack([row.rawPrediction.toArray() for row in rows])
    probability = np.stack([row.probability.toArray() for row in rows])
    np.testing.assert_allclose(raw, scores, rtol=0, atol=1e-6)
    np.testing.assert_allclose(probability, torch.softmax(scores, 1), rtol=0, atol=1e-6)
    assert [row.prediction for row in rows] == scores.argmax(1).tolist()
    assert classifier.numClasses == 3


def test_a_sigmoid_network_is_a_classifier_of_two(data: DataFrame) -> None:
    model = model_of(small_network(1), "sigmoid", 1)
    rows = model.transform(data).orderBy("id").collect()
    scores = by_hand(model.network)[:, 0]
    np.testing.assert_allclose([r.rawPrediction[1] for r in rows], scores, atol=1e-6)
    np.testing.assert_allclose([r.probability[1] for r in rows], torch.sigmoid(scores), atol=1e-6)
    assert [r.prediction for r in rows] == (scores > 0).double().tolist()


def test_regression_with_one_and_with_several_outputs(data: DataFrame) -> None:
    one = model_of(small_network(1), "identity", 1)
    found = one.transform(data)
    assert found.columns == [*data.columns, "prediction"]
    values = [row.prediction for row in found.orderBy("id").collect()]
    np.testing.assert_allclose(values, by_hand(one.network)[:, 0], rtol=0, atol=1e-6)
    two = model_of(small_network(2), "identity", 2)
    pairs = [row.prediction.toArray() for row in two.transform(data).orderBy("id").collect()]
    np.testing.assert_allclose(pairs, by_hand(two.network), rtol=0, atol=1e-6)


def test_types_and_attributes_are_those_of_spark_ml(
    data: DataFrame, classifier: TorchModel
) -> None:
    vectors = data.withColumn("features", array_to_vector("features"))
    theirs = LogisticRegression(maxIter=1).fit(vectors).transform(vectors)
    ours = classifier.transform(vectors)
    assert ours.columns == theirs.columns
    for mine, other in zip(ours.schema, theirs.schema, strict=True):
        assert mine.dataType == other.dataType
        if mine.name in ("rawPrediction", "probability", "prediction"):
            assert attributes(mine) == attributes(other)


def test_regression_has_the_types_and_attributes_of_spark_ml(data: DataFrame) -> None:
    vectors = data.withColumn("features", array_to_vector("features"))
    theirs = LinearRegression(maxIter=1).fit(vectors).transform(vectors).schema["prediction"]
    mine = model_of(small_network(1), "identity", 1).transform(vectors).schema["prediction"]
    assert mine.dataType == theirs.dataType
    assert set(theirs.metadata) <= {"ml_attr"}
    assert mine.metadata == {"ml_attr": {"type": "numeric", "name": "prediction"}}


def attributes(field: StructField) -> dict[str, Any]:
    return {key: value for key, value in field.metadata["ml_attr"].items() if key != "name"}


@pytest.mark.parametrize("kind", ["array", "vector"])
def test_rows_that_spark_reads_by_the_batch(
    spark: SparkSession, data: DataFrame, classifier: TorchModel, kind: str, tmp_path: Path
) -> None:
    rows = data
    if kind == "vector":
        rows = data.withColumn("features", array_to_vector("features"))
    rows.write.parquet(str(tmp_path / "rows"))
    read = spark.read.parquet(str(tmp_path / "rows"))
    found = classifier.transform(read).orderBy("id").collect()
    raw = np.stack([row.rawPrediction.toArray() for row in found])
    np.testing.assert_allclose(raw, by_hand(classifier.network), rtol=0, atol=1e-6)


def test_transform_starts_no_job(
    spark: SparkSession, data: DataFrame, classifier: TorchModel
) -> None:
    context = spark.sparkContext
    tracker = context.statusTracker()
    data.count()
    context.setJobGroup("lazy", "transform")
    try:
        found = classifier.transform(data)
        assert found.schema["probability"].dataType.typeName() == "vectorudt"
        assert list(tracker.getJobIdsForGroup("lazy")) == []
        found.select("prediction").collect()
        assert list(tracker.getJobIdsForGroup("lazy")) != []
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_rows_stay_where_they_are_and_keep_all_columns(
    data: DataFrame, classifier: TorchModel
) -> None:
    place = F.spark_partition_id().alias("place")
    twice = data.select("*", data["id"].alias("ID 2"), "label")  # a name that is there twice
    found = classifier.transform(twice)
    added = ["rawPrediction", "probability", "prediction"]
    assert found.columns == [*twice.columns, *added]
    before = [tuple(row) for row in data.select("id", place).collect()]
    after = [tuple(row) for row in classifier.transform(data).select("id", place).collect()]
    assert after == before
    assert len({place for _, place in before}) == 3
    assert found.count() == 120


def test_an_empty_name_leaves_a_column_out(data: DataFrame, classifier: TorchModel) -> None:
    classifier.setPredictionCol("").setRawPredictionCol("")
    assert classifier.transform(data).columns == [*data.columns, "probability"]
    other = classifier.transform(data, {classifier.predictionCol: "guess"})
    assert other.columns == [*data.columns, "probability", "guess"]
    assert other.select("guess").distinct().count() > 1


def test_columns_that_exist_or_are_missing(data: DataFrame, classifier: TorchModel) -> None:
    with pytest.raises(InputError, match="'id' exists already, but probabilityCol"):
        classifier.copy({classifier.probabilityCol: "id"}).transform(data)
    with pytest.raises(InputError, match=r"no column 'feature'\. Did you mean 'features'"):
        classifier.copy({classifier.featuresCol: "feature"}).transform(data)
    with pytest.raises(InputError, match="holds strings"):
        classifier.transform(data.withColumn("features", F.lit("a")))


def test_empty_dataframes_and_partitions(
    spark: SparkSession, data: DataFrame, classifier: TorchModel
) -> None:
    assert classifier.transform(data.where("id < 0")).collect() == []
    assert classifier.transform(data.limit(0)).collect() == []
    few = classifier.transform(data.where("id < 2").repartition(5))
    assert few.count() == 2
    regression = model_of(small_network(1), "identity", 1)
    assert regression.transform(spark.createDataFrame([], data.schema)).collect() == []


def test_nulls_name_the_column(data: DataFrame, classifier: TorchModel) -> None:
    nulls = data.withColumn("features", F.expr("if(id = 7, null, features)"))
    with pytest.raises(PythonException, match="'features': 1 row has null"):
        classifier.transform(nulls).collect()


def test_predictions_through_sql(
    spark: SparkSession, data: DataFrame, classifier: TorchModel
) -> None:
    found = classifier.transform(data)
    found.withColumn("p", vector_to_array("probability")).createOrReplaceTempView("predicted")
    rows = spark.sql(
        "SELECT prediction, count(*) AS n, avg(p[0]) AS p FROM predicted GROUP BY prediction"
    ).collect()
    scores = by_hand(classifier.network)
    for row in rows:
        mine = scores.argmax(1) == int(row.prediction)
        assert row.n == int(mine.sum())
        assert row.p == pytest.approx(float(torch.softmax(scores, 1)[mine, 0].mean()), abs=1e-6)
    assert sum(row.n for row in rows) == 120


def test_structured_streaming(
    spark: SparkSession, data: DataFrame, classifier: TorchModel, tmp_path: Path
) -> None:
    data.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(data.schema).parquet(str(tmp_path / "in"))
    query = (
        classifier.transform(stream)
        .select("id", "prediction")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(60)
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("id").collect()
    expected = by_hand(classifier.network).argmax(1).tolist()
    assert [row.prediction for row in found] == expected


def test_a_null_vector_is_told_in_a_sentence(spark: SparkSession, classifier: TorchModel) -> None:
    rows = spark.createDataFrame([(1, [0.0] * 4), (2, None)], "id int, features array<double>")
    vectors = F.when(F.col("features").isNotNull(), array_to_vector("features"))
    frame = rows.withColumn("features", vectors)
    with pytest.raises(PythonException) as caught:
        classifier.transform(frame).collect()
    text = str(caught.value)
    assert "Drop or fill them before predicting" in text
    assert len(text) < 1500
    assert "org.apache" not in text
