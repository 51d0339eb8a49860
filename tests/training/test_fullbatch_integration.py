"""Full-batch solvers on several local workers: the same path as on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training import oracle

import farandole
from farandole import TrainingResult
from farandole.training.solvers import LBFGS

pytestmark = pytest.mark.integration


def train(data: pd.DataFrame, workers: int, **options: Any) -> TrainingResult:
    defaults: dict[str, Any] = {"features": "features", "optimizer": "lbfgs", "epochs": 25}
    return farandole.train(
        oracle.classifier().double(),
        data,
        num_workers=workers,
        engine="local",
        progress=False,
        **defaults | options,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": LBFGS(block_size=50), "shuffle": False},
        {"weight": "weight", "validation": "held", "patience": 30},
    ],
    ids=["blocks", "weights and validation"],
)
def test_two_workers_walk_the_path_of_one(options: dict[str, Any]) -> None:
    table = oracle.classification(203)
    table["held"] = np.arange(203) % 4 == 1
    one, two = train(table, 1, **options), train(table, 2, **options)
    assert len(one.steps) == 26
    np.testing.assert_allclose(two.steps["loss"], one.steps["loss"], rtol=1e-8)
    shared = [name for name in one.history if "loss" in name or "accuracy" in name]
    np.testing.assert_allclose(two.history[shared], one.history[shared], rtol=1e-8)
    torch.testing.assert_close(
        two.network.state_dict(), one.network.state_dict(), rtol=1e-5, atol=1e-7
    )
