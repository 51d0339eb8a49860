"""Workers that Spark forks from our daemon have torch from the start."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def failing(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise LookupError("so that the next workers are new")
    yield


def loaded(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Spark's worker collects garbage after each task: not through what came with torch.
    frozen = gc.get_freeze_count() > 100_000 > len(gc.get_objects())
    yield pa.RecordBatch.from_pydict({"loaded": ["torch._dynamo" in sys.modules and frozen]})


def test_a_new_worker_has_torch(spark: SparkSession) -> None:
    rows = spark.range(2, numPartitions=2)
    with pytest.raises(Exception, match="so that the next workers are new"):
        rows.mapInArrow(failing, "loaded boolean").collect()
    assert [row.loaded for row in rows.mapInArrow(loaded, "loaded boolean").collect()] == [True] * 2


def test_rdds_wait_for_no_torch(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: "torch" in sys.modules)
    assert found.collect() == [False]
