"""How a study begins and goes on: no worker runs, trials are told by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farandole.tuning import Float
from farandole.tuning.opening import Opening
from farandole.tuning.problem import Problem
from farandole.tuning.search import SampledTrials


def opened(path: Path, sampler: Any, trials: int | None, space: Any) -> list[Any]:
    """Tell all trials of a study, new or gone on with; gives the arguments of those that ran."""
    problem = Problem.of(lambda x: x, space, None, None, None, {})
    opening = Opening.of(problem, sampler, "none", trials, None, None, 7)
    study = opening.study("s", str(path), resume=True)
    done, total = opening.plan(study)
    found = []
    for _ in range(total - done):
        proposal = SampledTrials(study, space).propose()
        study.tell(proposal.trial, 0.5)
        found.append(proposal.arguments["x"])
    return found


def test_a_grid_goes_on_with_what_it_lacks(tmp_path: Path) -> None:
    space = {"x": list(range(8))}
    assert opened(tmp_path / "j", "grid", 3, space) == [0, 1, 2]
    assert opened(tmp_path / "j", "grid", None, space) == [3, 4, 5, 6, 7]
    assert opened(tmp_path / "j", "grid", None, space) == []


def test_a_list_runs_what_is_new_in_it(tmp_path: Path) -> None:
    space = {"x": list(range(8))}
    assert opened(tmp_path / "j", [{"x": 5}, {"x": 5}], None, space) == [5, 5]
    assert opened(tmp_path / "j", [{"x": 5}, {"x": 1}, {"x": 2}], None, space) == [1, 2]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_study_that_goes_on_tries_other_values(tmp_path: Path, sampler: str) -> None:
    space = {"x": Float(0, 1)}
    first = opened(tmp_path / "j", sampler, 4, space)
    second = opened(tmp_path / "j", sampler, 8, space)
    assert len(first) == len(second) == 4
    assert not set(first) & set(second)
    assert opened(tmp_path / "other", sampler, 4, space) == first
