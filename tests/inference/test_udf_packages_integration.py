"""Functions on Python workers that lack a package: one sentence, and plain functions still run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException
from tests.clusters import python_daemon
from torch import nn

import farandole
from farandole.spark import Featurizer

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

pytestmark = pytest.mark.integration


def by_udf(spark: SparkSession) -> Any:
    column: Column = farandole.predict_udf(nn.Linear(2, 1))("features")
    return rows(spark).select(column)


def by_featurizer(spark: SparkSession) -> Any:
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    featurizer = Featurizer(model=network, layer="0", inputCol="features", outputCol="found")
    return featurizer.transform(rows(spark))


def rows(spark: SparkSession) -> Any:
    return spark.createDataFrame([([0.5, 1.0],)], "features array<float>")


@pytest.mark.parametrize(
    ("package", "apply"),
    [
        ("farandole", by_udf),
        ("torch", by_featurizer),
        pytest.param("torch", by_udf, marks=pytest.mark.exhaustive),
        pytest.param("farandole", by_featurizer, marks=pytest.mark.exhaustive),
    ],
)
def test_a_missing_package_is_named(
    spark: SparkSession,
    hide: Callable[[str], None],
    package: str,
    apply: Callable[[SparkSession], Any],
) -> None:
    hide(package)
    sentence = rf"the Python of Spark's workers, has no {package}\. Install it on every executor"
    with python_daemon(spark, "pyspark.daemon"), pytest.raises(PythonException) as caught:
        apply(spark).collect()
    text = str(caught.value)
    assert len(text) < 1200
    assert re.search(sentence, text)
    assert "cloudpickle" not in text


@pytest.mark.parametrize("package", ["torch", "pyarrow"])
def test_plain_functions_run_where_our_daemon_lacks_a_package(
    spark: SparkSession, hide: Callable[[str], None], package: str
) -> None:
    from pyspark.sql import functions as F

    hide(package)
    plus_one = F.udf(lambda number: number + 1, "long", useArrow=False)
    with python_daemon(spark, "farandole.daemon"):
        assert [row[0] for row in spark.range(2).select(plus_one("id")).collect()] == [1, 2]
