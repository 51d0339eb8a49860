from __future__ import annotations

from typing import Any

from tests._spark.connect import Connect

from farandole import _spark


def test_a_connect_server_shows_no_executors() -> None:
    session: Any = Connect(spark_master="yarn")
    assert _spark.task_places(session, "tag") == {}
    assert _spark.executors_running(session, "tag") == []


def test_a_connect_server_does_not_tell_how_many_tasks_run() -> None:
    session: Any = Connect()
    assert _spark.running_tasks(session) is None
