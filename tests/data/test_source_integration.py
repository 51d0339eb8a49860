"""Columns of a Spark DataFrame on their way to `forward`, in training and in transform."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tests.spark.recorder import Recorder, recorded
from tests.spark.samples import classes, frame, small_network
from torch import nn

from farandole.data.schema import KEY, Columns
from farandole.data.source import placed_rows
from farandole.errors import InputError
from farandole.spark import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

ROWS = 40
BIG = 2**53 + 1  # no double, let alone a float, tells this from its neighbours


@dataclass(frozen=True)
class Kind:
    """A column type of Spark, the value of row i, and what the network should see."""

    name: str
    spark: T.DataType
    value: Any
    dtype: str
    seen: Any = None

    def expected(self) -> np.ndarray[Any, Any]:
        see = self.seen or self.value
        return np.array([see(i) for i in range(ROWS)]).astype(self.dtype)


def sparse(i: int) -> SparseVector:
    return SparseVector(5, {i % 5: float(i + 1), 4: 0.5})


def dense(i: int) -> DenseVector:
    return DenseVector([i, 1.5, -i, 0, 2])


def mixed(i: int) -> Any:
    return sparse(i) if i % 3 else dense(i)


KINDS = [
    Kind("id", T.LongType(), lambda i: BIG + i, "int64"),
    Kind("byte", T.ByteType(), lambda i: i - 20, "int8"),
    Kind("short", T.ShortType(), lambda i: 300 * i, "int16"),
    Kind("int", T.IntegerType(), lambda i: 70_000 * i, "int32"),
    Kind("float", T.FloatType(), lambda i: i / 4, "float32"),
    Kind("double", T.DoubleType(), lambda i: i / 8, "float32"),
    Kind("decimal", T.DecimalType(10, 2), lambda i: Decimal(i) / 4, "float32"),
    Kind("boolean", T.BooleanType(), lambda i: i % 2 == 0, "bool"),
    Kind("longs", T.ArrayType(T.LongType()), lambda i: [i, -i, BIG], "int64"),
    Kind("floats", T.ArrayType(T.FloatType()), lambda i: [i / 2, 0.5], "float32"),
    Kind(
        "nested",
        T.ArrayType(T.ArrayType(T.DoubleType())),
        lambda i: [[float(i), 1.0], [2.0, 3.0], [4.0, -float(i)]],
        "float32",
    ),
    Kind("dense", VectorUDT(), dense, "float32", lambda i: dense(i).toArray()),
    Kind("sparse", VectorUDT(), sparse, "float32", lambda i: sparse(i).toArray()),
    Kind("mixed", VectorUDT(), mixed, "float32", lambda i: mixed(i).toArray()),
    Kind("binary", T.BinaryType(), lambda i: bytes([i, 7, 255]), "uint8", lambda i: [i, 7, 255]),
]


@pytest.fixture(scope="module")
def every_kind(spark: SparkSession) -> DataFrame:
    fields = [T.StructField(kind.name, kind.spark) for kind in KINDS]
    rows = [(*(kind.value(i) for kind in KINDS), float(i)) for i in range(ROWS)]
    return spark.createDataFrame(
        rows, T.StructType([*fields, T.StructField("label", T.DoubleType())])
    )


@pytest.fixture(scope="module")
def fitted(
    every_kind: DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TorchModel, list[np.ndarray[Any, Any]]]:
    folder = tmp_path_factory.mktemp("recorder")
    model = TorchEstimator(
        network=Recorder(str(folder)),
        featuresCols=[kind.name for kind in KINDS],
        loss="mse",
        optimizer="sgd",
        learningRate=1e-9,
        numWorkers=2,
        batchSize=16,
        progress=False,
    ).fit(every_kind)
    return model, recorded(folder)


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[kind.name for kind in KINDS])
def test_the_network_learns_from_what_the_column_holds(fitted: Any, number: int) -> None:
    expected = KINDS[number].expected()
    seen = fitted[1][number]
    assert seen.dtype == expected.dtype
    np.testing.assert_array_equal(seen, expected)


def test_transform_feeds_the_network_the_same(every_kind: DataFrame, fitted: Any) -> None:
    model = fitted[0]
    arguments = [torch.from_numpy(kind.expected()) for kind in KINDS]
    with torch.no_grad():
        expected = model.network(*arguments).numpy()
    rows = model.transform(every_kind.repartition(3)).select("label", "prediction").collect()
    found = [row.prediction for row in sorted(rows, key=lambda row: row.label)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


class Difference(nn.Module):
    """Tells its arguments apart."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self.scale * (a * 100 + b * 10 + c)


def test_names_with_dots_spaces_backticks_and_unicode(spark: SparkSession) -> None:
    names = ["a.b", "c d`e", "größe 📏"]
    rows = [(float(i), float(i % 7), float(i % 3), 1.0) for i in range(30)]
    data = spark.createDataFrame(rows, [*names, "la.bel`"])
    model = TorchEstimator(
        network=Difference(),
        featuresCols=names,
        labelCol="la.bel`",
        weightCol="größe 📏",
        predictionCol="vor`her.sage",
        loss="mse",
        optimizer="sgd",
        learningRate=1e-9,
        numWorkers=2,
        progress=False,
    ).fit(data)
    found = model.transform(data)
    assert found.columns == [*names, "la.bel`", "vor`her.sage"]
    scale = float(model.network.scale.detach())
    for row in found.collect():
        assert row[4] == pytest.approx(scale * (row[0] * 100 + row[1] * 10 + row[2]), rel=1e-6)


def test_columns_are_joined_for_a_network_with_one_argument(spark: SparkSession) -> None:
    x, y = classes(30)
    rows = [(*map(float, features), int(label)) for features, label in zip(x, y, strict=True)]
    data = spark.createDataFrame(rows, ["a", "b", "c", "d", "label"])
    model = TorchEstimator(
        network=nn.Linear(4, 3), featuresCols=["a", "b", "c", "d"], progress=False
    ).fit(data)
    found = [row.rawPrediction.toArray() for row in model.transform(data).collect()]
    with torch.no_grad():
        np.testing.assert_allclose(found, model.network(torch.tensor(x)), atol=1e-6)


def test_rows_are_placed_by_their_content(spark: SparkSession) -> None:
    data = frame(spark, 300)
    columns = Columns(("features",), ("label",))

    def places(rows: DataFrame) -> set[tuple[int, int]]:
        from pyspark.sql import functions as F

        placed = placed_rows(rows, columns, 2, shuffle=True)
        assert len(placed.columns) == 3
        return {
            (row.key, row.place)
            for row in placed.select(
                F.col(KEY).alias("key"), F.spark_partition_id().alias("place")
            ).collect()
        }

    first = places(data)
    assert places(data.repartition(5).orderBy("label")) == first
    shares = [sum(place == number for _, place in first) for number in (0, 1)]
    assert sum(shares) == 300
    assert min(shares) > 100


def test_names_of_columns_that_are_added_are_refused(spark: SparkSession) -> None:
    rows = frame(spark)
    estimator = TorchEstimator(network=small_network(), epochs=1, numWorkers=1, progress=False)
    with pytest.raises(InputError, match=r"'__farandole_key': .* Rename or drop it"):
        estimator.copy({estimator.featuresCol: "__farandole_key"}).fit(
            rows.withColumnRenamed("features", "__farandole_key")
        )
    taken = rows.withColumn("__Farandole_Prediction", F.lit(1))
    with pytest.raises(InputError, match=r"'__Farandole_Prediction': .* Rename or drop it"):
        estimator.fit(taken).transform(taken)
