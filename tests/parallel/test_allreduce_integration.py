from __future__ import annotations

import pytest

import farandole
from farandole.parallel import AllReduce
from farandole.testing.strategy_contract import CHECKS, check_all

pytestmark = pytest.mark.integration


def test_three_workers_keep_the_contract() -> None:
    names = [check.__name__ for check in CHECKS]
    results = farandole.run(check_all, (AllReduce(),), num_workers=3, engine="local")
    assert results == [names] * 3
