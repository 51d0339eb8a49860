"""Executors that answer or not, on a clock of our own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from farandole import _spark
from farandole.engines import spark_executors
from farandole.engines.spark_executors import ExecutorWatch

PLACES = {0: _spark.TaskPlace("a", "host-a"), 1: _spark.TaskPlace("b", "host-b")}


class Executors:
    """All answer at once, except the stopped one."""

    def __init__(self) -> None:
        self.stopped = ""
        self.asked: list[str] = []
        self.waiting, self.wakes = threading.Event(), threading.Event()

    def ask(self, session: object, executor: str) -> None:
        self.asked.append(executor)
        if executor == self.stopped:
            self.waiting.set()
            self.wakes.wait(60)


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executors]:
    found = Executors()
    monkeypatch.setattr(_spark, "is_local", lambda session: False)
    monkeypatch.setattr(_spark, "task_places", lambda session, tag: PLACES)
    monkeypatch.setattr(_spark, "ask_executor", found.ask)
    monkeypatch.setattr(
        _spark, "thread", lambda session, work: threading.Thread(target=work, daemon=True)
    )
    yield found
    found.wakes.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(spark_executors.time, "monotonic", lambda: now[0])
    return now


def watch(seconds: float) -> ExecutorWatch:
    session: Any = None
    return ExecutorWatch(session, "tag", seconds)


def pass_time(found: ExecutorWatch, clock: list[float], seconds: int) -> None:
    """Time that the job spends asking every second, as it does while workers run."""
    for _ in range(seconds):
        clock[0] += 1
        found.lost()


def test_a_stopped_executor_is_named_with_its_rank(
    executors: Executors, clock: list[float]
) -> None:
    executors.stopped = "b"
    with watch(3) as found:  # asks after a second
        assert executors.waiting.wait(60)
        pass_time(found, clock, 1)
        assert found.lost() is None
        pass_time(found, clock, 1)
        lost = found.lost()
    assert lost is not None
    assert lost.rank == 1
    assert "executor b on host-b has not answered Spark's driver for 2 s" in str(lost)


def test_a_driver_that_slept_blames_nobody(executors: Executors, clock: list[float]) -> None:
    executors.stopped = "b"
    with watch(3) as found:
        assert executors.waiting.wait(60)
        clock[0] += 1000
        assert found.lost() is None
        pass_time(found, clock, 2)
        assert found.lost() is not None


def test_those_that_answer_are_asked_again(executors: Executors) -> None:
    executors.stopped = "b"
    executors.wakes.set()  # it answers all the same
    with watch(0.03) as found:
        assert executors.waiting.wait(60)
        while len(executors.asked) < 8:
            assert found.lost() is None or "b" in executors.asked
    assert executors.asked[:4] == ["a", "b", "a", "b"]


def test_one_machine_has_no_executors_to_ask(
    executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_spark, "is_local", lambda session: True)
    monkeypatch.setattr(_spark, "thread", lambda session, work: pytest.fail("a thread"))
    with watch(0.03) as found:
        assert found.lost() is None
