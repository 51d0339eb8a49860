"""Files that Spark wrote, predicted for without it, and read by it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import nn

import farandole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_sparks_vectors_and_partitions_go_in_and_come_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(n, "ab"[n % 2], Vectors.dense([float(n), 2.0, 1.0])) for n in range(5)]
    rows.append((5, "a", Vectors.sparse(3, [2], [4.0])))
    frame = spark.createDataFrame(rows, ["id", "part", "features"])
    frame.coalesce(1).write.partitionBy("part").parquet(str(tmp_path / "in"))

    farandole.predict(
        nn.Identity(), tmp_path / "in", tmp_path / "out.parquet",
        features=["features"], answer="all", progress=False,
    )  # fmt: skip

    found = spark.read.parquet(str(tmp_path / "out.parquet")).orderBy("id")
    assert [row["features"] for row in found.collect()] == [row[2] for row in rows]
    assert [row["part"] for row in found.collect()] == [row[1] for row in rows]
    assert [row["prediction"]["prediction"] for row in found.collect()] == [1, 1, 0, 0, 0, 2]
    udf = farandole.predict_udf(nn.Identity(), answer="probability")
    expected = frame.orderBy("id").select(udf("features").alias("p")).collect()
    given = [row["prediction"]["probability"] for row in found.collect()]
    assert given == [row["p"] for row in expected]
