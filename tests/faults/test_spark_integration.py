"""Faults of a real standalone cluster: the fit goes on, and ends as it would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.clusters import in_a_process

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("spark_script.py")
Record = Callable[[str, object], None]


@pytest.mark.exhaustive  # a cluster, for minutes
@pytest.mark.fault("SIGKILL of an executor's JVM")
def test_an_executor_is_killed(tmp_path: Path, record_property: Record) -> None:
    found, _ = in_a_process(SCRIPT, str(tmp_path), "executor killed", folder=tmp_path, seconds=300)
    seen = found["executor killed"]
    record_property("what is seen", seen["reasons"][0])
    record_property("noticed after", seen["noticed"])
    record_property("goes on after", seen["resumed"])
    assert "executor" in seen["reasons"][0]
    assert seen["workers"] == [2]
    assert seen["epochs"] == 4
    assert seen["rows"]
    assert seen["same"]
    record_property("rows lost", 0)
    record_property("twice", 0)


@pytest.mark.laboratory
@pytest.mark.fault("a whole Spark worker is killed, and another one comes")
def test_it_goes_on_with_fewer_and_takes_the_others_in(
    tmp_path: Path, record_property: Record
) -> None:
    scenario = "worker lost and back"
    found, _ = in_a_process(SCRIPT, str(tmp_path), scenario, folder=tmp_path, seconds=300)
    seen = found[scenario]
    record_property("what is seen", seen["reasons"][0])
    record_property("noticed after", seen["noticed"])
    record_property("goes on after", seen["resumed"])
    assert seen["workers"] == [1, 2]
    assert seen["epochs"] == 4
    assert seen["rows"]
    record_property("rows lost", 0)
    record_property("twice", 0)
