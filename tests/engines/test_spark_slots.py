"""Waiting for slots, on a clock of our own."""

from __future__ import annotations

from typing import Any

import pytest

from farandole import _spark
from farandole.engines import spark_slots
from farandole.engines.spark_slots import settled_slots


class Session:
    """Can be a key of a WeakKeyDictionary, as Spark's can."""


class Cluster:
    """Has so many slots at so many seconds; time passes while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, local: bool = False) -> None:
        self.session: Any = Session()
        self.now = 0.0
        self.changes: dict[float, int] = {}
        monkeypatch.setattr(spark_slots.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(spark_slots.time, "sleep", self._sleep)
        monkeypatch.setattr(_spark, "slots", self._slots)
        monkeypatch.setattr(_spark, "is_local", lambda session: local)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _slots(self, session: object, *, fresh: bool = False, profile: object = None) -> int:
        return max((time, slots) for time, slots in self.changes.items() if time <= self.now)[1]


def test_enough_slots_need_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.changes = {0: 4}
    assert settled_slots(cluster.session, 3) == 4
    assert cluster.now == 0


def test_a_machine_has_its_slots_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, local=True)
    cluster.changes = {0: 2}
    assert settled_slots(cluster.session, 8) == 2
    assert cluster.now == 0


def test_a_young_cluster_gets_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.changes = {0: 0, 20: 1, 22: 2}
    assert settled_slots(cluster.session, 2) == 2
    assert 22 <= cluster.now < 23


def test_slots_that_never_were_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(monkeypatch)
    cluster.changes = {0: 2}
    assert settled_slots(cluster.session, 8) == 2
    assert cluster.now < 4
    assert capsys.readouterr().err == ""


def test_a_lost_executor_is_waited_for_and_the_user_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(monkeypatch)
    cluster.changes = {0: 2, 100: 1, 130: 2}
    settled_slots(cluster.session, 2)
    cluster.now = 100
    assert settled_slots(cluster.session, 2) == 2
    assert 130 <= cluster.now < 131
    said = "farandole: waiting for Spark to replace an executor: 1 of 2 slots.\n"
    assert capsys.readouterr().err == said


def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.changes = {0: 3, 100: 1, 105: 2}
    settled_slots(cluster.session, 3)
    cluster.now = 100
    assert settled_slots(cluster.session, 3, patience=20) == 2
    assert 120 <= cluster.now < 121
