from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from farandole import _spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def test_what_a_classic_session_tells(spark: SparkSession) -> None:
    assert _spark.slots(spark) == 2
    assert _spark.is_local(spark)
    assert not _spark.is_connect(spark)
    assert _spark.driver_host(spark) == "127.0.0.1"
    assert _spark.qualified_path(spark, "some/path") == "some/path"
    assert _spark.qualified_path(spark, "hdfs://host/path") == "hdfs://host/path"


def test_local_workers_run_the_drivers_python_unless_told_otherwise(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "another-python")
    _spark.set_up_python(spark)
    assert spark.sparkContext.pythonExec == "another-python"  # PYSPARK_PYTHON is set here
    monkeypatch.delenv("PYSPARK_PYTHON")
    _spark.set_up_python(spark)
    assert spark.sparkContext.pythonExec == sys.executable


def linger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A short task first, so that Spark, which counts ten times a second, counts again."""
    for batch in batches:
        time.sleep(0.3 if 0 in batch.column("id").to_pylist() else 170)
        yield batch


def test_tasks_that_run_are_counted(spark: SparkSession) -> None:
    def work() -> None:
        _spark.add_tag(spark, "farandole-lingers")
        with pytest.raises(Exception, match="cancelled"):
            spark.range(0, 3, 1, 3).mapInArrow(linger, "id long").collect()

    thread = _spark.thread(spark, work)
    thread.start()
    deadline = time.monotonic() + 150
    while not (found := _spark.running_tasks(spark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    _spark.cancel(spark, "farandole-lingers")
    thread.join(150)
    assert found in (1, 2, 3)  # Spark may hear of the third's start before the first's end
    assert not thread.is_alive()


def test_the_session_is_found_from_another_thread(spark: SparkSession) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(_spark.active_session()))
    thread.start()
    thread.join()
    assert found[0] is not None
    assert _spark.require_session() is not None


def test_a_dataframe_is_known_by_its_class(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, [0.5])], "id int, `a b` array<float>")
    assert _spark.is_dataframe(frame)
    assert not _spark.is_dataframe(frame.toPandas())
    assert _spark.arrow_schema(frame).names == ["id", "a b"]


def test_a_thread_of_ours_has_the_callers_pool_and_leaves_its_tags_alone(
    spark: SparkSession,
) -> None:
    seen: list[tuple[str | None, set[str]]] = []
    context = spark.sparkContext

    def look() -> None:
        _spark.add_tag(spark, "farandole-test")
        pool, tags = context.getLocalProperty("spark.scheduler.pool"), context.getJobTags()
        seen.append((pool, set(tags)))

    context.setLocalProperty("spark.scheduler.pool", "fair one")
    try:
        thread = _spark.thread(spark, look)
        thread.start()
        thread.join()
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
    assert seen == [("fair one", {"farandole-test"})]
    assert "farandole-test" not in context.getJobTags()
    _spark.cancel(spark, "farandole-test")  # nothing runs: nothing happens
