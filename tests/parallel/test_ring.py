from __future__ import annotations

import farandole.parallel
from farandole.parallel import Ring
from farandole.testing.strategy_contract import CHECKS, check_all


def test_a_world_of_one_keeps_the_contract() -> None:
    assert check_all(Ring()) == [check.__name__ for check in CHECKS]


def test_it_is_known_by_name() -> None:
    assert farandole.parallel.resolve("ring") == Ring()
