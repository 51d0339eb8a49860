"""Tasks that register with the driver, over real connections of this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.engines.encryption import Credentials
from farandole.engines.spark_gang import (
    Gang,
    GangAddress,
    GangMember,
    check_speculation,
    most_slots,
)
from farandole.errors import LaunchError, NotEnoughSlots

SECRET = Credentials(b"what only this run knows")


@pytest.fixture
def gang() -> Iterator[Gang]:
    with Gang("127.0.0.1", SECRET, 3, seconds=30) as found:
        yield found


def member(gang: Gang, rank: int, task: int) -> GangMember:
    return GangMember(gang.address, SECRET, rank, task)


def test_all_learn_where_the_others_are(gang: Gang) -> None:
    members = [member(gang, rank, 40 + rank) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda one: one.all_gather(f"place {one._rank}"), members))
    assert found == [["place 0", "place 1", "place 2"]] * 3
    assert gang.missing() is None
    for one in members:
        one.close()


def test_who_comes_again_is_sent_away(gang: Gang) -> None:
    """Another attempt of a task, whichever way Spark came to start it."""
    first = member(gang, 1, task=7)
    with pytest.raises(LaunchError, match="rank 1 was started again by Spark"):
        member(gang, 1, task=9)
    first.close()


def test_those_that_came_do_not_wait_for_ever() -> None:
    with Gang("127.0.0.1", SECRET, 3, seconds=0) as gang:
        assert gang.missing() is None  # nobody has come: rows are on their way
        one = member(gang, 0, task=1)
        one._store.set("place/0", "here")
        found = gang.missing()
        one.close()
    assert isinstance(found, NotEnoughSlots)
    assert (found.wanted, found.slots) == (3, 1)
    assert "1 of 3 workers had started 0 s after the first" in str(found)
    assert "spark.dynamicAllocation.maxExecutors" in str(found)


def test_a_driver_out_of_reach_is_told() -> None:
    nobody = GangAddress("127.0.0.1", 1, 2, 1)
    with pytest.raises(LaunchError, match=r"can't reach the driver at 127.0.0.1:1 .*driver.host"):
        GangMember(nobody, SECRET, 0, 1)


def session(**settings: str) -> Any:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(conf=SimpleNamespace(get=named.get))


def test_copies_of_slow_tasks_are_refused() -> None:
    check_speculation(session())
    with pytest.raises(LaunchError, match=r"spark\.speculation=false"):
        check_speculation(session(spark_speculation="true"))


@pytest.mark.parametrize(
    ("executors", "cores", "slots"),
    [("3", "4", 6), ("2147483647", "4", math.inf), ("3", None, math.inf), ("1", "1", 0)],
)
def test_the_most_that_settings_allow(executors: str, cores: str | None, slots: float) -> None:
    settings = {"spark_dynamicAllocation_maxExecutors": executors}
    if cores is not None:
        settings["spark_executor_cores"] = cores
    assert most_slots(session(**settings), cpus=2) == slots
