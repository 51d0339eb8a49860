from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from farandole.errors import InputError
from farandole.parallel import ParameterServer, resolve
from farandole.testing.strategy_contract import CHECKS, check_all
from farandole.testing.training_contract import CASES, check_training


def test_a_world_of_one_keeps_the_contract() -> None:
    assert check_all(ParameterServer()) == [check.__name__ for check in CHECKS]


def test_alone_an_asynchronous_worker_keeps_all_contracts() -> None:
    strategy = ParameterServer(asynchronous=True)
    assert check_all(strategy) == [check.__name__ for check in CHECKS]
    assert check_training(strategy) == [case.name for case in CASES]


def test_it_is_known_by_name() -> None:
    assert resolve("parameter-server") == ParameterServer()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": 0}, r"servers must be a positive integer\. Received: servers=0"),
        ({"servers": True}, "servers must be a positive integer"),
        ({"asynchronous": True, "staleness": -1}, r"0 or more\. Received: staleness=-1"),
        ({"asynchronous": True, "staleness": 1.5}, "staleness must be an integer of 0 or more"),
        ({"staleness": 2}, "staleness=2 needs asynchronous=True"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ParameterServer(**options)


def test_more_servers_than_there_is_room_for() -> None:
    with pytest.raises(InputError, match="Received: servers=3, num_workers=2"):
        ParameterServer(servers=3).check(nn.Linear(2, 2), 2)
    ParameterServer(servers=3).check(nn.Linear(2, 2), 3)
    with pytest.raises(InputError, match=r"of which the network has 2\. Received: servers=3"):
        ParameterServer(servers=3, asynchronous=True).check(nn.Linear(2, 2), 3)


def test_only_synchronous_servers_are_exact() -> None:
    assert ParameterServer().is_exact
    assert not ParameterServer(asynchronous=True).is_exact
