from __future__ import annotations

import os
from typing import Any

import pytest

import farandole
from farandole.api.run import print_output
from farandole.engines import LocalEngine, Output, SparkEngine, resolve
from farandole.errors import InputError


def answer() -> int:
    return 42


class Recorder:
    """An engine that only writes down what it was asked."""

    name = "recorder"

    def run(self, task: Any, num_workers: int, **options: Any) -> list[Any]:
        self.workers, self.timeout = num_workers, options["timeout"]
        return [task.work(None, task.load(rank, num_workers, iter(()))) for rank in range(2)]


def test_an_engine_object_is_used_as_it_is() -> None:
    engine = Recorder()
    results = farandole.run(
        lambda *a, **k: (a, k), (1, 2), {"x": 3}, num_workers=2, engine=engine, timeout=7
    )
    assert results == [((1, 2), {"x": 3})] * 2
    assert (engine.workers, engine.timeout) == (2, 7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_workers": 0}, "num_workers must be a positive integer. Received: num_workers=0"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 2.0}, "num_workers"),
        ({"num_workers": True}, "num_workers"),
        ({"num_workers": "2"}, "num_workers"),
        ({"fn": 42}, "fn must be a function. Received: fn=42"),
        ({"args": 5}, "args must be a tuple"),
        ({"args": "abc"}, "args must be a tuple"),
        ({"kwargs": [1]}, "kwargs must map names to values"),
        ({"timeout": 0}, "timeout must be a positive number of seconds. Received: timeout=0"),
        ({"timeout": -3}, "timeout"),
        ({"encrypt": "yes"}, "encrypt"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"engine": "sparc"}, 'engine must be "local", "spark", "ray" or an engine object'),
        ({"engine": object()}, "engine must be"),
    ],
)
def test_bad_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"fn": answer, "num_workers": 1, "engine": Recorder(), **wrong}
    with pytest.raises(InputError) as caught:
        farandole.run(**options)
    assert message in str(caught.value)


def test_the_default_is_local_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole._spark.active_session", lambda: None)
    assert isinstance(resolve(None), LocalEngine)


def test_the_default_is_spark_with_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole._spark.active_session", lambda: "a session")
    monkeypatch.setattr("farandole._spark.require_session", lambda: "a session")
    assert isinstance(resolve(None), SparkEngine)


def test_spark_without_a_session_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr("farandole._spark.sessions._default_session", lambda: None)
    with pytest.raises(InputError, match=r"getOrCreate\(\) first.*engine=.local"):
        resolve("spark")


@pytest.mark.parametrize("threads", [0, -1])
def test_a_local_engine_needs_threads(threads: int) -> None:
    with pytest.raises(InputError, match="threads must be a positive integer"):
        LocalEngine(threads=threads)


def test_output_is_shown_with_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    print_output(3, Output("stdout", "one"))
    print_output(4, Output("stderr", "two"))
    print_output(5, "an event of no interest")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[rank 3] one\n", "[rank 4] two\n")


def test_by_default_there_are_as_many_workers_as_can_run_at_once() -> None:
    engine = Recorder()
    farandole.run(answer, engine=engine)
    assert engine.workers == len(os.sched_getaffinity(0))
