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

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("network_script.py")
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
        seconds=200,
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
    assert seen["workers"] == [1, 2]
    assert seen["epochs"] == 4
    assert seen["rows"]
    record_property("rows lost", 0)
    record_property("twice", 0)
