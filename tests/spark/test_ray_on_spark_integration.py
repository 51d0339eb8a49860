"""Ray inside of a Spark application: one start, which takes most of a minute, for all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.clusters import in_a_process

from farandole.errors import InputError, MissingPackage, NotEnoughSlots
from farandole.spark import ray_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("ray_on_spark_script.py")
START = Path(__file__).with_name("ray_start_script.py")
ROUNDING = 1e-6


@pytest.mark.exhaustive  # Ray's own limits for its start are missed on a busy machine
@pytest.mark.timeout(560)
def test_it_starts_trains_tunes_and_ends(tmp_path: Path) -> None:
    found, _ = in_a_process(SCRIPT, str(tmp_path), folder=tmp_path, seconds=500)
    assert found["cpus"] == 2  # a core of each of Spark's two slots, none of the driver's
    assert found["nodes"] == 3
    assert found["mode"] == "token"
    code, text = found["stranger"]
    assert code != 0
    assert "auth" in text.lower()
    assert "connected to a Ray already" in found["second"]

    on_spark, on_ray, killed = found["weights"]
    np.testing.assert_allclose(on_ray, on_spark, atol=ROUNDING)  # the same rows in each batch
    np.testing.assert_allclose(killed, on_spark, atol=ROUNDING)  # rows were sent again
    assert (tmp_path / "killed").exists()
    assert "a bad row" in found["bad row"][1]
    assert found["trials"] == 3
    assert found["spark beside"] == 100

    assert "of the user's own" in found["raised"]
    assert found["changed"] == []
    assert not found["is connected"]
    assert found["processes inside"] > 0
    assert found["processes after"] == []
    assert found["slots after"] == 3
    assert found["folders"] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "raised"),
    [
        ("head", ["LaunchError", "head node failed"]),
        # It takes a whole start of Ray's.
        pytest.param("interrupt", ["KeyboardInterrupt", ""], marks=pytest.mark.exhaustive),
    ],
)
def test_a_start_that_fails_leaves_nothing(what: str, raised: list[str], tmp_path: Path) -> None:
    found, _ = in_a_process(START, what, folder=tmp_path, seconds=280)
    name, text = found.pop("raised")
    assert name == raised[0]
    assert raised[1] in text
    assert found == {"nodes": [], "jobs": 0, "ports": [], "handler": True}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"workers": 0}, "workers must be"),
        ({"workers": 1, "driver_cpus": -1}, "driver_cpus must be"),
        ({"workers": 1, "object_store_memory": 1000}, "object_store_memory must be"),
        ({"workers": 1, "cpus_per_worker": 2}, "a node has the cores of a task, 1"),
    ],
)
def test_what_can_not_be_is_refused(
    options: dict[str, Any], complaint: str, spark: SparkSession
) -> None:
    with pytest.raises(InputError, match=complaint), ray_on_spark(spark, **options):
        pass


def test_a_slot_is_left_to_spark(spark: SparkSession) -> None:
    with (
        pytest.raises(NotEnoughSlots, match=r"take 2 of Spark's 2 slots.*at most 1 workers"),
        ray_on_spark(spark, workers=2),
    ):
        pass


def test_without_ray(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray.util.spark", None)
    with (
        pytest.raises(MissingPackage, match=r"pip install 'farandole\[ray\]'"),
        ray_on_spark(spark, workers=1),
    ):
        pass


def test_connect_is_refused(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    from farandole import _spark

    monkeypatch.setattr(_spark, "is_connect", lambda session: True)
    with pytest.raises(InputError, match="needs a classic session"), ray_on_spark(spark, workers=1):
        pass
