"""The Spark engine, as far as it can be tested without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from farandole import _spark
from farandole.engines.late import LateNotice
from farandole.engines.spark import SparkEngine, _Collecting


def test_whoever_waits_for_spark_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = threading.Event()

    class Notice(LateNotice):
        def look(self, connected: int) -> bool:
            if given := super().look(connected):
                told.set()
            return given

    def busy() -> pa.Table:
        assert told.wait(10), "nobody was told"
        return pa.table({"x": [1]})

    monkeypatch.setattr(_spark, "thread", lambda session, work: threading.Thread(target=work))
    monkeypatch.setattr(_spark, "add_tag", lambda session, tag: None)
    stage: Any = SimpleNamespace(toArrow=busy)
    nobody: Any = SimpleNamespace(connected=0, error=None, count=0)
    session: Any = None
    table = _Collecting(session, stage, Notice(2, seconds=0)).table(nobody, nobody, True)
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
