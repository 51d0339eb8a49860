"""What a user sees when parts of a real standalone cluster die, and that the session goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.clusters import in_a_process, python_daemon

import farandole
from farandole.errors import LaunchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(__file__).with_name("spark_faults_script.py")
Found = dict[str, dict[str, Any]]
MOST_SECONDS = 90
"""Far more than is needed (a second, mostly), and less than Spark's own time-outs."""


def drive(folder: Path, *scenarios: str) -> Found:
    """Let the faults happen, one after the other, and print what a user would have seen."""
    found, _ = in_a_process(SCRIPT, str(folder), *scenarios, folder=folder, seconds=280)
    for name in scenarios:
        seen = found[name]
        print(f"{name}: {seen['error']} after {seen['seconds']:.1f} s: {seen['text']}")
        assert seen["seconds"] < MOST_SECONDS
        assert len(seen["text"]) < 600
        assert not [word for word in ("org.apache", "py4j") if word in seen["text"].lower()]
        assert seen["shown alone"]
    return found


def lost(seen: dict[str, Any]) -> str:
    """The sentence about rank 1, whose process the faults choose."""
    assert (seen["error"], seen["rank"]) == ("WorkerLost", 1)
    assert seen["again"] > 0
    sentence: str = seen["text"]
    assert sentence.startswith("rank 1 was lost: ")
    assert "executor" in sentence
    assert " on 127.0.0.1" in sentence
    return sentence


@pytest.mark.cluster
@pytest.mark.laboratory
@pytest.mark.timeout(300)
@pytest.mark.fault(
    "a cluster without restarts: executor killed, Python crashed, job cancelled, session stopped",
    "one exception with one sentence each",
)
def test_faults_of_a_cluster(tmp_path: Path) -> None:
    names = ["executor killed", "python crashed", "job cancelled"]
    found = drive(tmp_path, *names, "session stopped")
    assert "Command exited with code 137" in lost(found["executor killed"])
    crashed = lost(found["python crashed"])
    assert "crashed (Segmentation fault)" in crashed
    assert "string_at" in crashed  # the line that did it
    assert "memory" not in crashed
    cancelled = found["job cancelled"]
    assert (cancelled["error"], cancelled["again"] > 0) == ("JobCancelled", True)
    assert "cancellation of all jobs" in cancelled["text"]
    check_stopped_session(found["session stopped"])


def check_stopped_session(seen: dict[str, Any]) -> None:
    assert seen["error"] == "JobCancelled"
    assert "session was stopped while the workers ran" in seen["text"]
    for later in (seen["train"], seen["estimator"]):
        assert later["error"] == "InputError"
        assert "session" in later["text"]


@pytest.mark.laboratory
@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.fault(
    "a cluster: Python killed, worker killed, executor stopped; no restarts",
    "one exception with one sentence each",
)
def test_more_faults_of_a_cluster(tmp_path: Path) -> None:
    names = ["executor stopped", "python killed", "host killed"]
    found = drive(tmp_path, *names)
    assert "has not answered Spark's driver for 20 s" in lost(found["executor stopped"])
    assert "was killed" in lost(found["python killed"])
    assert "its host, or the network to it, has gone" in lost(found["host killed"])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("daemon", "package"),
    [
        ("farandole.daemon", "farandole"),
        ("pyspark.daemon", "torch"),
        ("pyspark.daemon", "pyarrow"),
        pytest.param("pyspark.daemon", "farandole", marks=pytest.mark.exhaustive),
        pytest.param("farandole.daemon", "torch", marks=pytest.mark.exhaustive),
        pytest.param("farandole.daemon", "pyarrow", marks=pytest.mark.exhaustive),
    ],
)
def test_workers_without_a_package(
    spark: SparkSession,
    hide: Callable[[str], None],
    daemon: str,
    package: str,
) -> None:
    hide(package)
    with (
        python_daemon(spark, daemon),
        pytest.raises(LaunchError, match=f"workers has no {package}. Install it") as caught,
    ):
        farandole.run(os.getpid, num_workers=2, engine="spark")
    assert len(str(caught.value)) < 600
    assert "org.apache" not in str(caught.value)
