from __future__ import annotations

import pytest

import farandole
from farandole.parallel import AllReduce
from farandole.testing.strategy_contract import CHECKS, check_all
from farandole.testing.training_contract import CASES, check_training

pytestmark = pytest.mark.integration


def _both_contracts() -> list[str]:
    return check_all(AllReduce()) + check_training(AllReduce())


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_keep_the_contracts(workers: int) -> None:
    names = [check.__name__ for check in CHECKS] + [case.name for case in CASES]
    assert farandole.run(_both_contracts, num_workers=workers, engine="local") == [names] * workers
