"""Workers on two hosts with a network between them: what happens to it, and who listens to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import in_a_process
from tests.faults.hosts import Host, NoHosts, hosts

pytestmark = [pytest.mark.cluster, pytest.mark.laboratory, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("network_script.py")
MOST_GREETING = 128
Record = Callable[[str, object], None]


@pytest.fixture
def three_hosts() -> Iterator[list[Host]]:
    """The driver's host, another one that has a worker, and a stranger's."""
    try:
        with hosts(3) as made:
            yield made
    except NoHosts as why:
        pytest.skip(str(why))


def on_the_first(made: list[Host], scenario: str, folder: Path) -> dict[str, Any]:
    """What the script tells of a scenario."""
    fields = json.dumps([asdict(host) for host in made])
    found, shown = in_a_process(
        SCRIPT,
        str(folder),
        fields,
        scenario,
        folder=folder,
        seconds=340,
        address=made[0].address,
        through=made[0].command(),
    )
    return found | {"shown": shown}


@pytest.mark.fault("the network between two hosts is cut, heartbeat=5, and comes back")
def test_a_cable_is_pulled_and_plugged_in_again(
    three_hosts: list[Host], tmp_path: Path, record_property: Record
) -> None:
    seen = on_the_first(three_hosts, "cut and mended", tmp_path)
    record_property("what is seen", seen["reasons"][0])
    record_property("noticed after", seen["noticed"])
    record_property("goes on after", seen["resumed"])
    print(seen)
    assert seen["noticed"] < 60  # and not after one of Spark's own time-outs
    assert seen["cut"] in seen["reasons"][0]
    assert seen["workers"] == [1, 2]
    assert seen["epochs"] == 4
    assert seen["rows"]
    record_property("rows lost", 0)
    record_property("twice", 0)


@pytest.mark.attack("another host calls every port of an encrypted run on two hosts")
def test_a_stranger_hears_greetings_only(
    three_hosts: list[Host], tmp_path: Path, record_property: Record
) -> None:
    seen = on_the_first(three_hosts, "encrypted", tmp_path)
    print(seen)
    assert seen["same as in the clear"]
    assert seen["same as on one host"]
    assert {call["address"] for call in seen["heard"] if call["answered"]} == {
        host.address for host in three_hosts[:2]
    }
    assert all(call["bytes"] <= MOST_GREETING for call in seen["heard"])
    assert all(call["closed"] for call in seen["heard"])
    assert f"a connection from {three_hosts[2].address} was refused" in seen["shown"]
    record_property("what is seen", f"refused on {len(seen['heard'])} ports")
