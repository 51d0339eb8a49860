from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch

from farandole.errors import InputError
from farandole.tuning import Float, Population
from farandole.tuning.population import PopulationTrials


def make(space: Any, size: int = 4, **options: Any) -> PopulationTrials:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    given = {"maximize": True, "fixed": frozenset(), "seed": 0, **options}
    return PopulationTrials(study, space, Population(size=size), **given)


def network(value: float) -> Any:
    return SimpleNamespace(network=torch.nn.Linear(1, 1).requires_grad_(False).apply(
        lambda layer: layer.weight.fill_(value)))  # fmt: skip


def test_the_worst_goes_on_from_the_best() -> None:
    trials = make({"rate": Float(0.1, 10.0), "width": [8, 16]}, fixed=frozenset({"width"}))
    first = [trials.propose() for _ in range(4)]
    assert trials.propose() is None  # all members are busy
    scores = [0.9, 0.5, 0.6, 0.1]
    for proposal, score in zip(first, scores, strict=True):
        assert proposal is not None
        assert proposal.initial is None
        trials.observe(proposal.trial.number, score, network(score))
    second = [trials.propose() for _ in range(4)]
    weights = [float(one.initial["weight"]) for one in second if one and one.initial]
    assert weights == pytest.approx([0.9, 0.5, 0.6, 0.9])
    assert second[3] is not None
    assert second[3].trial.user_attrs["from_member"] == 0
    assert second[3].arguments["width"] == first[0].arguments["width"]  # type: ignore[union-attr]


def test_members_that_are_equal_and_one_that_failed() -> None:
    trials = make({"optimizer": ["adam"]})
    for _ in range(3):
        for proposal in [trials.propose() for _ in range(4)]:
            assert proposal is not None
            failed = proposal.trial.number == 1
            trials.observe(proposal.trial.number, None if failed else 0.5,
                           None if failed else network(0.5))  # fmt: skip


def test_what_a_population_can_not_be() -> None:
    for population in (Population(size=1), Population(quantile=0.9), Population(resample=2)):
        with pytest.raises(InputError):
            population.check()
    with pytest.raises(InputError, match="not a function"):
        make(lambda trial: {})
