"""The drop-in and what can't be used: Spark's words for bad rows, and a way out of each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.ml import classification as theirs
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StructField, StructType
from tests.spark.perceptrons import Sample, fit, frame, standardised

from farandole.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def iris(spark: SparkSession) -> DataFrame:
    return frame(spark, *standardised("iris"))


SCHEMA = StructType([StructField("label", DoubleType()), StructField("features", VectorUDT())])
GOOD = Vectors.dense([1.0, 2.0])


@pytest.mark.parametrize(
    ("rows", "classes", "words"),
    [
        (
            [(3.0, GOOD), (0.5, GOOD), (-1.0, GOOD)],
            3,
            ["Labels MUST be in [0, 3), but got", "Labels MUST be Integers, but got 0.5"],
        ),
        ([(2.0, GOOD), (0.5, GOOD)], 2, ["Labels MUST be in {0, 1}, but got"]),
        (
            [(float("nan"), GOOD), (1.0, None)],
            3,
            ["Labels MUST NOT be Null or NaN (1 row", "Vectors MUST NOT be Null (1 row"],
        ),
        (
            [
                (None, GOOD),
                (0.0, Vectors.dense([1.0, float("nan")])),
                (0.0, Vectors.sparse(2, {0: np.inf})),
            ],
            3,
            [
                "Labels MUST NOT be Null or NaN (1 row",
                "Vector values MUST NOT be NaN or Infinity, but got nan (2 rows",
            ],
        ),
    ],
    ids=["labels", "two classes", "missing", "not finite"],
)
def test_bad_rows_in_the_words_of_spark(
    spark: SparkSession, rows: list[Any], classes: int, words: list[str]
) -> None:
    good = [(float(i % 2), GOOD) for i in range(4)]
    data = spark.createDataFrame([*good, *rows], SCHEMA).coalesce(1)
    with pytest.raises(InputError) as caught:
        fit(data, layers=[2, classes], numWorkers=1)
    for phrase in words:
        assert phrase in str(caught.value)
    with pytest.raises(Exception, match="MUST") as spark_says:
        theirs.MultilayerPerceptronClassifier(layers=[2, classes]).fit(data)
    said = re.search(
        r"(Labels|Vectors|Vector values) MUST[^,]*?( in .*?[})]|(?=, but| SQLSTATE))",
        str(spark_says.value),
    )
    assert said is not None
    assert said[1] in str(caught.value)


def test_other_refusals(iris: DataFrame) -> None:
    with pytest.raises(InputError, match="takes 5 numbers a row"):
        fit(iris, layers=[5, 3])
    with pytest.raises(InputError, match="no rows"):
        fit(iris.where("label > 7"), layers=[4, 3])
    for params in ({"predictionCol": "label"}, {"predictionCol": "probability"}):
        (name,) = params.values()
        with pytest.raises(InputError, match=f"Column {name} already exists"):
            fit(iris, layers=[4, 3], **params)
    with pytest.raises(InputError, match="num_workers must be a positive integer"):
        fit(iris, layers=[4, 3], numWorkers=0)


def test_an_output_column_that_exists_is_refused_by_a_model(known: Sample) -> None:
    model = known.models.ours
    again = known.test.withColumn("prediction", F.lit(1))
    with pytest.raises(InputError, match="Column prediction already exists"):
        model.transform(again)
    with pytest.raises(InputError, match="Column rawPrediction already exists"):
        model.copy({model.probabilityCol: "rawPrediction"}).transform(known.test)


def test_evaluate_wants_a_dataframe(known: Sample) -> None:
    with pytest.raises(TypeError, match="dataset must be a DataFrame"):
        known.models.ours.evaluate([1, 2])  # type: ignore[arg-type]
