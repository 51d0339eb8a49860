"""Workers that Spark forks from our daemon have torch from the start."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.clusters import in_a_process

from farandole.spark import daemon_settings

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


STAND_INS = """
import importlib.abc, runpy, sys, types
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "farandole":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
theirs = types.ModuleType("pyspark.daemon")
theirs.manager = lambda: print("Spark's own")
sys.modules["pyspark.daemon"] = theirs
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_without_farandole_it_is_sparks_own() -> None:
    file = daemon_settings()["spark.files"]
    done = subprocess.run(
        [sys.executable, "-c", STAND_INS, file], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "Spark's own\n"  # and nothing else: Spark reads a port there
    assert "No module named 'farandole" in done.stderr


@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_a_cluster_without_farandole_runs_plain_functions(tmp_path: Path) -> None:
    script = Path(__file__).parent / "spark" / "daemon_script.py"
    found, _ = in_a_process(script, str(tmp_path), folder=tmp_path, seconds=360)
    assert "No module named 'farandole'" in found["old"]["text"]
    assert found["plain"] == [False]
    assert "has no farandole. Install it" in found["fit"]["text"]
    assert "or send it with farandole.spark.ship" in found["fit"]["text"]
    assert found["shipped"] == 8
    assert found["installed"] == [True]
