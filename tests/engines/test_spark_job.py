"""The job of the workers, as far as it can be tested without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from farandole import _spark
from farandole.engines import spark_job
from farandole.engines.spark_job import SparkJob, StartNotice
from farandole.errors import WorkerLost


def test_whoever_waits_for_spark_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = threading.Event()

    class Notice(StartNotice):
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
    nobody: Any = SimpleNamespace(connected=0, error=None, lost=None, count=0)
    monkeypatch.setattr(_spark, "is_local", lambda session: True)
    session: Any = None
    job = SparkJob(session, results, Notice(2, seconds=0))
    table = job.table(nobody, nobody, nobody, True)
    assert table.num_rows == 1
    assert "waiting for 2 workers" in capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(spark_job.time, "monotonic", lambda: now[0])
    return now


def test_a_wait_is_explained_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    notice = StartNotice(3)
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
    notice = StartNotice(3)
    assert not notice.update(connected=1)
    clock[0] += 60
    assert not notice.update(connected=1)
    assert not notice.update(connected=0)
    assert capsys.readouterr().err == ""


class Spark:
    """A Spark whose job lasts until it is cancelled, if it listens to that at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, listens: bool = True) -> None:
        self.cancelled = threading.Event()
        self.over = threading.Event()
        self.says: Exception | None = None
        self.stuck = ["7"]
        self.replaced: list[str] = []
        self._listens = listens
        monkeypatch.setattr(_spark, "thread", self._thread)
        monkeypatch.setattr(_spark, "is_local", lambda session: True)
        monkeypatch.setattr(_spark, "add_tag", lambda session, tag: None)
        monkeypatch.setattr(_spark, "cancel", self._cancel)
        monkeypatch.setattr(_spark, "executors_running", lambda session, tag: self.stuck)
        monkeypatch.setattr(
            _spark, "replace_executors", lambda session, found: self.replaced.extend(found)
        )
        for name in ("_CANCEL_SECONDS", "_REASON_SECONDS", "_END_SECONDS"):
            monkeypatch.setattr(spark_job, name, 0.3)

    def job(self) -> SparkJob:
        session: Any = None
        results: Any = SimpleNamespace(toArrow=self._collect)
        return SparkJob(session, results, StartNotice(2))

    def _thread(self, session: object, work: Any) -> threading.Thread:
        return threading.Thread(target=work, daemon=True)

    def _collect(self) -> pa.Table:
        self.over.wait(60)
        raise self.says or RuntimeError("Job 3 cancelled")

    def _cancel(self, session: object, tag: str) -> None:
        self.cancelled.set()
        if self._listens:
            self.over.set()


def endpoint(error: BaseException) -> Any:
    return SimpleNamespace(connected=2, error=error, lost=None, count=0)


@pytest.mark.parametrize("listens", [True, False])
def test_a_lost_worker_ends_the_job(monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    spark = Spark(monkeypatch, listens=listens)
    driver = endpoint(WorkerLost(1, "it doesn't answer."))
    with pytest.raises(WorkerLost, match="it doesn't answer"):
        spark.job().table(driver, driver, driver, True)
    assert spark.cancelled.is_set()
    spark.over.set()


@pytest.mark.parametrize("stuck", [["7"], []])
def test_an_executor_that_ends_its_tasks_stays(
    monkeypatch: pytest.MonkeyPatch, stuck: list[str]
) -> None:
    spark = Spark(monkeypatch)
    spark.stuck = stuck
    spark.job().replace_stuck_executors()
    assert spark.replaced == stuck


def test_what_spark_says_of_a_lost_worker_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch)
    spark.says = RuntimeError("Command exited with code 137")
    driver = endpoint(WorkerLost(1, "its connection has closed."))
    threading.Timer(0.1, spark.over.set).start()
    with pytest.raises(RuntimeError, match="code 137"):
        spark.job().table(driver, driver, driver, True)
    assert not spark.cancelled.is_set()


def test_an_error_of_the_driver_ends_the_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch)
    driver = endpoint(ValueError("of an observer"))
    with pytest.raises(ValueError, match="of an observer"):
        spark.job().table(driver, driver, driver, True)
    assert spark.cancelled.is_set()
    assert spark.replaced == []
