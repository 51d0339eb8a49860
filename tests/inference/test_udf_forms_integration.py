"""Every form in which Spark calls a network gives the answers of plain torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.data.test_image_decoding import encoded, picture, spark_image
from tests.spark.samples import classes, small_network
from torch import nn

import farandole
from farandole.inference.udf import PredictUdf
from farandole.networks import CNN
from farandole.ragged import Ragged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

ROWS = 60
X = classes(ROWS)[0]
GROUPS = ["x" if row % 3 else "y" for row in range(ROWS)]


def raw(network: nn.Module | None = None) -> Any:
    with torch.no_grad():
        return (network or small_network())(torch.from_numpy(X)).numpy()


WINNERS = raw().argmax(1).tolist()


def table() -> pa.Table:
    return pa.table(
        {
            "id": np.arange(ROWS),
            "features": pa.array(list(X), pa.list_(pa.float32())),
            "g": GROUPS,
            **{name: X[:, place] for place, name in enumerate("abcd")},
        }
    )


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """Rows as an array, as columns, and as dense and sparse Vectors; in two partitions."""
    from pyspark.ml.linalg import Vectors

    vectors = spark.createDataFrame(
        [
            (
                row,
                Vectors.sparse(4, range(4), X[row].tolist()) if row % 2 else Vectors.dense(X[row]),
            )
            for row in range(ROWS)
        ],
        ["id", "vector"],
    )
    found = spark.createDataFrame(table()).join(vectors, "id").repartition(2).cache()
    assert found.count() == ROWS
    return found


def classify(**options: Any) -> PredictUdf:
    return farandole.predict_udf(small_network(), answer="class", **options)


def struct() -> Any:
    from pyspark.sql import functions as F

    return F.struct("a", "b", "c", "d")


def predictions(rows: DataFrame) -> list[Any]:
    return [row.prediction for row in rows.orderBy("id").collect()]


COLUMNS: dict[str, Callable[[PredictUdf], Any]] = {
    "array": lambda p: p("features"),
    "vector": lambda p: p("vector"),
    "several columns": lambda p: p("a", "b", "c", "d"),
    "struct": lambda p: p(struct()),
    "Series": lambda p: p.series("features"),
    "Series of vectors": lambda p: p.series("vector"),
    "several Series": lambda p: p.series("a", "b", "c", "d"),
    "iterator": lambda p: p.iterator("features"),
    "iterator of vectors": lambda p: p.iterator("vector"),
    "iterator of several": lambda p: p.iterator_of_several("a", "b", "c", "d"),
    "DataFrame": lambda p: p.frame(struct()),
    "iterator of DataFrames": lambda p: p.iterator_of_frames(struct()),
}


@pytest.mark.parametrize("form", COLUMNS)
def test_every_form_of_a_column(frame: DataFrame, form: str) -> None:
    # One by one: Spark starts a Python process for each UDF of a query, and torch in each.
    found = frame.select("id", COLUMNS[form](classify()).alias("prediction"))
    assert predictions(found) == WINNERS


def test_several_networks_in_one_query(frame: DataFrame) -> None:
    other = small_network(seed=5)
    second = farandole.predict_udf(other, answer="class")
    rows = frame.select("id", classify()("features").alias("p"), second("vector").alias("q"))
    found = rows.orderBy("id").toPandas()
    assert found.p.tolist() == WINNERS
    assert found.q.tolist() == raw(other).argmax(1).tolist()


STRUCTS: dict[str, Callable[[PredictUdf], Any]] = {
    "arrow": lambda p: p("features"),
    "Series": lambda p: p.series("features"),
    "iterator": lambda p: p.iterator("features"),
    "DataFrame": lambda p: p.frame(struct()),
    "iterator of DataFrames": lambda p: p.iterator_of_frames(struct()),
}


@pytest.mark.parametrize("form", STRUCTS)
def test_structs_in_every_form(frame: DataFrame, form: str) -> None:
    made = farandole.predict_udf(small_network(), answer="all")
    found = predictions(frame.select("id", STRUCTS[form](made).alias("prediction")))
    share = torch.from_numpy(raw()).softmax(1).numpy()
    np.testing.assert_allclose([one.raw for one in found], raw(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose([one.probability for one in found], share, rtol=1e-4)
    assert [one.prediction for one in found] == WINNERS


@pytest.mark.parametrize("features", [["features"], ["a", "b", "c", "d"]])
def test_forms_that_take_whole_rows(frame: DataFrame, features: list[str]) -> None:
    made = classify(features=features)
    rows = frame.select("id", "g", *features)
    schema = made.schema(rows)
    assert predictions(rows.mapInArrow(made.map_arrow, schema)) == WINNERS
    assert predictions(rows.mapInPandas(made.map_pandas, schema)) == WINNERS
    assert predictions(rows.groupBy("g").applyInPandas(made.per_group, schema)) == WINNERS


def test_vectors_of_whole_rows(frame: DataFrame) -> None:
    made = classify(features=["vector"])
    rows = frame.select("id", "vector")
    found = rows.mapInArrow(made.map_arrow, made.schema(rows)).orderBy("id").collect()
    assert [row.prediction for row in found] == WINNERS
    np.testing.assert_allclose([row.vector.toArray() for row in found], X)


def test_structs_of_whole_rows(frame: DataFrame) -> None:
    made = farandole.predict_udf(small_network(), answer="all", features=["features"])
    rows = frame.select("id", "g", "features")
    arrow = rows.mapInArrow(made.map_arrow, made.schema(rows))
    groups = rows.groupBy("g").applyInPandas(made.per_group, made.schema(rows))
    for found in (predictions(arrow), predictions(groups)):
        np.testing.assert_allclose([one.raw for one in found], raw(), rtol=1e-4, atol=1e-6)


def test_a_model_for_each_group(frame: DataFrame) -> None:
    networks = {"x": small_network(seed=1), "y": small_network(seed=2)}
    made = farandole.predict_by_group(networks, answer="class", features=["features"])
    rows = frame.select("id", "g", "features")
    found = predictions(rows.groupBy("g").applyInPandas(made.per_group, made.schema(rows)))
    answers = {group: raw(network).argmax(1) for group, network in networks.items()}
    assert found == [answers[group][row] for row, group in enumerate(GROUPS)]
    only = farandole.predict_by_group({"x": networks["x"]}, answer="class", features=["features"])
    with pytest.raises(Exception, match=r"no model for the group \('y',\). There are: \('x',\)"):
        rows.groupBy("g").applyInPandas(only.per_group, only.schema(rows)).collect()


def test_cogroups(spark: SparkSession) -> None:
    left, right = (spark.createDataFrame(table().select(["id", one])) for one in ("g", "features"))
    schema = "id long, g string, features array<float>, prediction double"
    made = classify(features=["features"])
    both = left.groupBy("id").cogroup(right.groupBy("id"))  # a group a row
    assert predictions(both.applyInPandas(made.per_cogroup(), schema)) == WINNERS


def test_aggregates_of_groups(frame: DataFrame) -> None:
    hows = ("mode", "mean", "min", "max", "sum")
    named = farandole.predict_udf(small_network(), answer="class", labels=["p", "q", "r"])
    made = classify()
    columns = [made.aggregate("features", how=how).alias(how) for how in hows]
    columns.append(named.aggregate("features", how="mode").alias("name"))
    for row in frame.groupBy("g").agg(*columns).collect():
        mine = np.array([w for w, group in zip(WINNERS, GROUPS, strict=True) if group == row.g])
        counts = np.bincount(mine.astype(int))
        assert row["mode"] == counts.argmax()
        assert row.name == "pqr"[counts.argmax()]
        for how in hows[1:]:
            assert row[how] == pytest.approx(getattr(np, how)(mine))


def test_sql(spark: SparkSession, frame: DataFrame) -> None:
    frame.createOrReplaceTempView("rows_to_classify")
    labels = ("red", "green", "blue")
    farandole.register(spark, "classify", small_network(), answer="class", labels=labels)
    found = spark.sql(
        "SELECT classify(features) AS array, classify(vector) AS vector, "
        "classify(a, b, c, d) AS several FROM rows_to_classify ORDER BY id"
    ).toPandas()
    expected = [labels[winner] for winner in WINNERS]
    for name in ("array", "vector", "several"):
        assert found[name].tolist() == expected


def test_vectors_and_the_best_and_several_outputs(frame: DataFrame) -> None:
    network = small_network()
    share = torch.from_numpy(raw()).softmax(1).numpy()
    columns = [
        farandole.predict_udf(network, answer="probability", as_vector=True)("features").alias("v"),
        farandole.predict_udf(network, answer="topk", k=2, labels=list("pqr"))("features").alias(
            "k"
        ),
        farandole.predict_udf(network, answer={"x": 0})("features").alias("o"),
    ]
    rows = frame.select("id", *columns).orderBy("id").collect()
    np.testing.assert_allclose([row.v.toArray() for row in rows], share, rtol=1e-4)
    order = np.argsort(-share, 1)[:, :2]
    assert [[one.label for one in row.k] for row in rows] == [
        ["pqr"[place] for place in places] for places in order
    ]
    np.testing.assert_allclose([row.o.x for row in rows], raw(), rtol=1e-4, atol=1e-6)


def images(spark: SparkSession) -> tuple[DataFrame, list[Any]]:
    made = [picture(6 + n % 3, 7, 3) for n in range(8)]
    schema = (
        "id int, image struct<origin: string, height: int, width: int, nChannels: int, mode: int, "
        "data: binary>, content binary"
    )
    rows = [(n, tuple(spark_image(one).values()), encoded(one)) for n, one in enumerate(made)]
    return spark.createDataFrame(rows, schema).repartition(2), made


def test_images(spark: SparkSession) -> None:
    network = CNN(channels=3, outputs=2, filters=(4,), seed=0)
    frame, made = images(spark)
    with torch.no_grad():
        alone = [network(Ragged.of([torch.from_numpy(one)], axes=2)).numpy()[0] for one in made]
    predict = farandole.predict_udf(network, answer="raw")
    forms = {
        "image": predict("image"),
        "content": predict("content"),
        "series": predict.series("content"),
        "series of images": predict.series("image"),
    }
    for column in forms.values():
        found = predictions(frame.select("id", column.alias("prediction")))
        np.testing.assert_allclose(np.stack(found), alone, rtol=1e-4, atol=1e-5)


def test_nulls(spark: SparkSession) -> None:
    rows: list[Any] = [(n, X[n].tolist(), float(n)) for n in range(12)]
    rows[3], rows[7] = (3, None, 3.0), (7, [1.0, None, 2.0, 3.0], 7.0)
    given = spark.createDataFrame(rows, "id int, features array<float>, n double").coalesce(1)
    made = classify(nulls="null", features=["features"])
    forms = {
        "arrow": made("features"),
        "series": made.series("features"),
        "iterator": made.iterator("features"),
    }
    expected = [None if n in (3, 7) else WINNERS[n] for n in range(12)]
    kept = given.mapInArrow(made.map_arrow, made.schema(given))
    assert predictions(kept) == expected
    for name, column in forms.items():
        assert predictions(given.select("id", column.alias("prediction"))) == expected, name
    with pytest.raises(Exception, match=r"2 rows have null|1 row has null.*row 3") as caught:
        given.select(classify()("features")).collect()
    assert "row 3" in str(caught.value)


def test_no_rows_and_empty_partitions(frame: DataFrame) -> None:
    made = farandole.predict_udf(small_network(), answer="topk", features=["features"])
    none = frame.select("id", "features").where("id < 0")
    assert none.select(made("features")).collect() == []
    assert none.mapInArrow(made.map_arrow, made.schema(none)).collect() == []
    few = farandole.predict_udf(small_network(), answer="class")
    some = frame.where("id = 5").repartition(4).select(few("features").alias("p"))
    assert [row.p for row in some.collect()] == [WINNERS[5]]


def test_streaming(spark: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    source = tmp_path / "in"
    frame.select("id", "features", "vector").write.parquet(str(source))
    made = classify()
    stream = spark.readStream.schema("id long, features array<float>").parquet(str(source))
    query = (
        stream.select("id", made("features").alias("prediction"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert predictions(spark.read.parquet(str(tmp_path / "out"))) == WINNERS


def test_a_network_of_more_than_a_megabyte(frame: DataFrame, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 60_000), nn.ReLU(), nn.Linear(60_000, 3))
    expected = raw(network).argmax(1).tolist()
    made = [
        farandole.predict_udf(network, answer="class", features=["features"], folder=folder)
        for folder in (None, tmp_path)
    ]
    assert all(one.application.predictor.path for one in made)
    assert list(tmp_path.iterdir())
    columns = [one("features").alias(f"p{place}") for place, one in enumerate(made)]
    found = frame.select("id", *columns).orderBy("id").toPandas()
    assert found.p0.tolist() == found.p1.tolist() == expected
