"""GPUs that Spark manages: which one a worker is granted, and what happens without CUDA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.clusters import in_a_process

import farandole
from farandole.errors import LaunchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(__file__).with_name("gpu_script.py")


@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.timeout(500)
def test_workers_use_the_gpus_that_spark_grants(tmp_path: Path) -> None:
    found, _ = in_a_process(SCRIPT, str(tmp_path), folder=tmp_path, seconds=460)
    assert found["devices"] == ["cuda:5", "cuda:7"]
    assert found["shared by default"] == ["cuda:5", "cuda:7"]
    granted = found["granted"]
    assert granted["error"] == "LaunchError"
    assert granted["text"].startswith(("Spark granted GPU 5, but", "Spark granted GPU 7, but"))
    assert "torch.cuda.is_available() is False" in granted["text"]
    assert "torch.cuda.is_available() is False" in found["prediction"]["text"]
    assert "LaunchError: Spark granted GPU" in found["prediction"]["text"]
    assert found["predicted on the cpu"] == 2
    assert found["cpu"] == [0, 1]
    assert found["too many"]["error"] == "NotEnoughSlots"
    assert "a GPU of its own, but only 2 such tasks" in found["too many"]["text"]
    assert found["threads"] == [2]
    assert found["too many cores"]["error"] == "NotEnoughSlots"
    assert "each with 2 cores, but only 1 such tasks" in found["too many cores"]["text"]


@pytest.mark.integration
def test_local_mode_schedules_no_stage_by_itself(spark: SparkSession) -> None:
    with pytest.raises(LaunchError, match=r"needs stage-level scheduling.*spark\.task\.cpus=2"):
        farandole.run(os.getpid, num_workers=1, engine="spark", cpus_per_worker=2)


@pytest.mark.integration
def test_a_gpu_that_is_not_there_is_an_error_on_spark(spark: SparkSession) -> None:
    with pytest.raises(LaunchError, match=r"device='cuda', but torch\.cuda\.is_available\(\)"):
        farandole.run(os.getpid, num_workers=2, engine="spark", device="cuda")
