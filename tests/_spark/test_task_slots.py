from __future__ import annotations

from typing import Any

import pytest
from tests._spark.connect import Connect

from farandole import _spark
from farandole._spark import task_slots


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"spark_master": "local[4]"}, 4),
        ({"spark_master": "local"}, 1),
        ({"spark_master": "local[8, 3]"}, 8),
        ({"spark_master": "local[4]", "spark_task_cpus": "2"}, 2),
        ({"spark_master": "local[1]", "spark_task_cpus": "2"}, 1),
    ],
)
def test_the_slots_of_a_local_connect_server(settings: dict[str, str], slots: int) -> None:
    session: Any = Connect(**settings)
    assert _spark.is_connect(session)
    assert _spark.slots(session) == slots


def test_the_slots_of_a_cluster_are_counted_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, partitions = [0.0], iter([6, 8, 10, 12])
    monkeypatch.setattr(task_slots, "_partitions_of_a_range", lambda session: next(partitions))
    monkeypatch.setattr(task_slots.time, "monotonic", lambda: now[0])
    session: Any = Connect(spark_master="spark://host:7077", spark_task_cpus="2")
    other: Any = Connect(spark_master="yarn")
    assert [_spark.slots(session), _spark.slots(session)] == [3, 3]
    assert _spark.slots(other) == 8
    now[0] = 59
    assert _spark.slots(session) == 3
    now[0] = 61
    assert _spark.slots(session) == 5
    assert _spark.slots(session, fresh=True) == 6


@pytest.mark.parametrize(
    ("master", "enabled", "found"),
    [("yarn", "true", True), ("yarn", "false", False), ("local[2]", "true", False)],
)
def test_dynamic_allocation_is_for_clusters(master: str, enabled: str, found: bool) -> None:
    session: Any = Connect(spark_master=master, spark_dynamicAllocation_enabled=enabled)
    assert _spark.has_dynamic_allocation(session) is found
