"""The Spark engine, as far as it can be tested without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from farandole import _spark
from farandole.engines import spark
from farandole.engines.spark import SparkEngine, _Collector, _StartNotice


def test_whoever_waits_for_spark_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = threading.Event()

    class Notice(_StartNotice):
        def update(self, connected: int) -> bool:
            if given := super().update(connected):
                told.set()
            return given

    def busy() -> pa.Table:
        assert told.wait(60), "nobody was told"
        return pa.table({"x": [1]})

    monkeypatch.setattr(_spark, "thread", lambda session, work: threading.Thread(target=work))
    monkeypatch.setattr(_spark, "add_tag", lambda session, tag: None)
    results: Any = SimpleNamespace(toArrow=busy)
    nobody: Any = SimpleNamespace(connected=0, error=None, count=0, lost=None)
    session: Any = None
    table = _Collector(session, results, Notice(2, seconds=0)).table(nobody, nobody, nobody, True)
    assert table.num_rows == 1
    assert "waiting for 2 workers" in capsys.readouterr().err


def test_an_executor_that_joins_late_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def slots(session: object, *, fresh: bool = False) -> int:
        asked.append(fresh)
        return 4 if fresh else 1

    monkeypatch.setattr(_spark, "slots", slots)
    monkeypatch.setattr(_spark, "is_local", lambda session: False)
    session: Any = SimpleNamespace()
    SparkEngine(session)._check_slots(4)
    assert asked == [False, True]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(spark.time, "monotonic", lambda: now[0])
    return now


def test_a_wait_is_explained_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    notice = _StartNotice(3)
    clock[0] += 14
    assert not notice.update(connected=0)
    clock[0] += 2
    assert notice.update(connected=0)
    assert not notice.update(connected=0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "farandole: still waiting for 3 workers to start; are all of Spark's slots busy?"
    )
    assert err.count("\n") == 1


def test_workers_that_came_are_no_longer_waited_for(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    notice = _StartNotice(3)
    assert not notice.update(connected=1)
    clock[0] += 60
    assert not notice.update(connected=1)
    assert not notice.update(connected=0)
    assert capsys.readouterr().err == ""
