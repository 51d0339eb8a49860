"""_spark.py, as far as it can be tested without a session."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from farandole import _spark
from farandole.errors import InputError


class Connect:
    """What `_spark` sees of a Connect session: its settings."""

    def __init__(self, **settings: str) -> None:
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.conf = SimpleNamespace(get=self._settings.get)


Connect.__module__ = "pyspark.sql.connect.session"


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
    monkeypatch.setattr(_spark, "_partitions_of_a_range", lambda session: next(partitions))
    monkeypatch.setattr(_spark.time, "monotonic", lambda: now[0])
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


def test_a_stopped_session_is_refused() -> None:
    session: Any = Connect()
    session.is_stopped = False
    _spark.check_running(session)
    session.is_stopped = True
    with pytest.raises(InputError, match="session has been stopped"):
        _spark.check_running(session)


def test_a_connect_server_shows_no_executors() -> None:
    session: Any = Connect(spark_master="yarn")
    assert _spark.task_places(session, "tag") == {}
    assert _spark.executors_running(session, "tag") == []


def test_a_connect_server_does_not_tell_how_many_tasks_run() -> None:
    session: Any = Connect()
    assert _spark.running_tasks(session) is None


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("", False),
    ],
)
def test_which_masters_are_local(master: str, local: bool) -> None:
    session: Any = Connect(spark_master=master)
    assert _spark.is_local(session) is local


@pytest.mark.parametrize(
    ("text", "size"),
    [("1g", 1 << 30), ("512m", 512 << 20), ("100", 100), ("2kb", 2048), ("0", None), ("?", None)],
)
def test_the_limit_of_results(text: str, size: int | None) -> None:
    session: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: text))
    assert _spark.max_result_bytes(session) == size


def test_looking_for_a_session_imports_and_starts_nothing() -> None:
    code = (
        "import sys; from farandole import _spark; assert _spark.active_session() is None; "
        "assert not _spark.is_dataframe([1]); print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_way_out() -> None:
    assert _spark._outgoing_address("127.0.0.1") == "127.0.0.1"
    assert _spark._outgoing_address("no-such-host.invalid") == "127.0.0.1"


def test_rows_cannot_be_numbered_by_an_old_spark() -> None:
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(version="4.1.4"))
    with pytest.raises(InputError, match=r"shuffle=False needs Spark 4\.2 .* this is 4\.1\.4"):
        _spark.numbered(frame, "key")
