from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training import oracle

import farandole
from farandole.api.find_learning_rate import RESERVED, suggest
from farandole.errors import InputError

TABLE = oracle.classification(60)


def test_the_learning_rate_finder_ramps_up_and_finds_the_steepest_fall() -> None:
    found = farandole.find_learning_rate(
        oracle.classifier(),
        TABLE,
        features="features",
        optimizer="sgd",
        lowest=1e-4,
        highest=1e4,
        steps=60,
        engine="local",
    )
    np.testing.assert_allclose(found["learning_rate"], np.geomspace(1e-4, 1e4, 60), rtol=1e-6)
    assert 1e-3 < found.attrs["suggestion"] < 100
    assert found["loss"].iloc[-1] > found["loss"].iloc[0]


def test_the_ramp_starts_at_the_lowest_rate_whatever_a_factory_has_set() -> None:
    found = farandole.find_learning_rate(
        oracle.classifier(),
        TABLE,
        features="features",
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=7.0),
        lowest=1e-3,
        highest=1e-1,
        steps=3,
        engine="local",
    )
    np.testing.assert_allclose(found["learning_rate"], [1e-3, 1e-2, 1e-1])


@pytest.mark.parametrize("name", RESERVED)
def test_what_the_finder_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"takes no '{name}'"):
        farandole.find_learning_rate(oracle.classifier(), TABLE, **{name: 1})


@pytest.mark.parametrize("options", [{"lowest": 0.0}, {"lowest": 2.0}, {"steps": 1}])
def test_a_ramp_that_can_not_be(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="0 < lowest < highest"):
        farandole.find_learning_rate(oracle.classifier(), TABLE, **options)


def suggested(losses: list[float]) -> float:
    """Of the rates 0, 1, 2 …"""
    return suggest(pd.Series(np.arange(len(losses), dtype=float)), pd.Series(losses))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([3.0, 2.9, 2.0, 1.8, 1.7], 2),
        ([3.0, 2.9, 2.0, 1.9, 50.0, 5000.0, 10.0], 2),
        ([3.0, 2.0, 1.9, 9.0, 4.0, 1.5], 1),
        ([3.0, 2.0, 1.9, float("nan"), 1.0, 0.1], 1),
        ([3.0, 2.0, float("inf"), float("inf")], 1),
        ([-1.0, -3.0, -3.5, 9.0, -20.0], 1),
        ([1.0, 2.0, 3.0], 0),
        ([float("nan"), float("nan")], 0),
    ],
    ids=["falls", "explodes", "falls again", "nan", "infinite", "negative", "rises", "all nan"],
)
def test_the_suggestion_is_before_the_minimum_and_before_an_explosion(
    losses: list[float], expected: float
) -> None:
    assert suggested(losses) == expected
