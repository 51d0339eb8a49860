"""Training through a pipeline, against one process that has the whole network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.training.pipeline_cases import CASES, NORMALISED, ROWS, plain, table, trained
from torch import nn

import farandole
from farandole import current_world
from farandole.errors import InputError
from farandole.parallel import AllReduce, Hybrid, Pipeline
from farandole.parallel.base import Strategy
from farandole.parallel.pipeline.schedule import pipeline
from farandole.training.job import Outcome
from farandole.world import World

pytestmark = pytest.mark.integration

Results = dict[str, Outcome | str]


def train_all(strategy: Strategy, names: list[str]) -> Results:
    found: Results = {}
    for name in names:
        try:
            found[name] = trained(name, strategy, current_world())
        except InputError as error:
            found[name] = str(error)
    return found


@pytest.fixture(scope="module")
def two() -> list[Results]:
    return farandole.run(train_all, (Pipeline(), list(CASES)), num_workers=2, engine="local")


@pytest.fixture(scope="module")
def copies() -> list[Results]:
    names = ["plain", "row weights", "few rows", "small batches"]
    strategy = Hybrid(data=2, inner=Pipeline(micro_batches=3, schedule="1f1b"))
    return farandole.run(train_all, (strategy, names), num_workers=4, engine="local")


def compare(found: Outcome | str, name: str) -> None:
    assert isinstance(found, Outcome), found
    assert found.state is not None
    alone = trained(name, AllReduce(), World())
    assert alone.state is not None
    rtol = CASES[name].rtol
    assert list(found.state) == list(alone.state)
    torch.testing.assert_close(found.state, alone.state, rtol=rtol, atol=rtol / 10)
    assert found.progress.reason == alone.progress.reason
    for mine, other in zip(found.progress.history, alone.progress.history, strict=True):
        for key in other:
            if key.startswith(("train_", "validation_")):
                np.testing.assert_allclose(mine[key], other[key], rtol=max(rtol, 1e-5), atol=rtol)


@pytest.mark.parametrize("name", [name for name in CASES if name != NORMALISED])
def test_two_stages_learn_what_one_process_does(two: list[Results], name: str) -> None:
    compare(two[0][name], name)


@pytest.mark.parametrize("name", ["plain", "row weights", "few rows", "small batches"])
def test_so_do_two_copies_of_two_stages(copies: list[Results], name: str) -> None:
    compare(copies[0][name], name)


def passes(outcome: Outcome | str) -> list[str]:
    assert isinstance(outcome, Outcome)
    assert outcome.spans is not None
    return [span.label for span in outcome.spans if span.kind in ("forward", "backward")]


def test_torch_does_what_the_schedule_says(two: list[Results], copies: list[Results]) -> None:
    updates = 3 * -(-ROWS // 16)
    for rank, results in enumerate(two):
        expected = list(map(str, pipeline(2, 4, "gpipe")[rank])) * updates
        assert passes(results["plain"]) == expected
    for rank, results in enumerate(copies):
        once = list(map(str, pipeline(2, 3, "1f1b")[rank % 2]))
        assert passes(results["plain"]) == once * updates


def test_bytes_that_went_to_the_other_stage(two: list[Results]) -> None:
    """Of 16 rows: 8 values of float64 each way, and the rows of whoever isn't at the right end."""
    first, last = (results["plain"] for results in two)
    assert isinstance(first, Outcome)
    assert isinstance(last, Outcome)
    activations = 3 * 6 * 16 * 8 * 8
    labels, features = first.sent - activations, last.sent - activations
    assert labels % (3 * 8) == 0
    assert features % (3 * 6 * 8) == 0
    assert labels // 24 + features // 144 == ROWS  # each row left its worker once


def test_statistics_are_those_of_micro_batches(two: list[Results]) -> None:
    """16, 16 and 1 rows: a single one has no variance, however often it is there to fill up."""
    outcome = two[0][NORMALISED]
    assert isinstance(outcome, Outcome)
    assert outcome.state is not None
    values = np.stack(table(33)["x"].to_numpy())
    assert int(outcome.state["0.num_batches_tracked"]) == 3 * 2 * 4
    mean, variance = outcome.state["0.running_mean"], outcome.state["0.running_var"]
    np.testing.assert_allclose(mean, values.mean(0), atol=0.1)
    np.testing.assert_allclose(variance, values.var(0), rtol=0.25)


def no_rows(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, label)


def test_refusals_come_before_step_one() -> None:
    options: dict[str, Any] = {
        "features": "x",
        "num_workers": 2,
        "engine": "local",
        "strategy": "pipeline",
        "progress": False,
    }
    with pytest.raises(InputError, match="needs a loss for each row"):
        farandole.train(plain().double(), table(20), loss=no_rows, **options)
    with pytest.raises(InputError, match="1 of the network's 5 layers have parameters to train"):
        farandole.train(plain().double(), table(20), freeze="all but head", **options)
