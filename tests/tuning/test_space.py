from __future__ import annotations

from typing import Any

import optuna
import pytest

from farandole.errors import InputError
from farandole.tuning import Choice, Float, Int, Widths
from farandole.tuning.space import (
    check_space,
    describe_space,
    grid_of,
    names_of,
    params_of,
    suggest,
)
from farandole.tuning.study import arguments_of


def trials(space: Any, count: int = 50) -> list[tuple[optuna.Trial, dict[str, Any]]]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    asked = [study.ask() for _ in range(count)]
    return [(trial, suggest(space, trial)) for trial in asked]


def test_values_are_in_their_ranges_and_constants_stay() -> None:
    space = {
        "rate": Float(1e-4, 1e-1, log=True),
        "half": Float(0, 1, step=0.5),
        "depth": Int(1, 4),
        "even": Int(2, 8, step=2),
        "name": ["a", "b"],
        "fixed": 7,
        "pair": (1, 2),
    }
    found = [arguments for _, arguments in trials(space)]
    assert all(1e-4 <= one["rate"] <= 1e-1 for one in found)
    assert sum(one["rate"] < 1e-2 for one in found) > 25  # by powers of ten: two thirds
    assert {one["half"] for one in found} == {0.0, 0.5, 1.0}
    assert {one["depth"] for one in found} == {1, 2, 3, 4}
    assert {one["even"] for one in found} == {2, 4, 6, 8}
    assert {one["name"] for one in found} == {"a", "b"}
    assert {(one["fixed"], one["pair"]) for one in found} == {(7, (1, 2))}


def test_a_choice_has_a_space_of_its_own() -> None:
    space = {"optimizer": Choice({"adam": {}, "sgd": {"momentum": Float(0, 0.9)}})}
    for trial, arguments in trials(space):
        assert ("momentum" in arguments) == (arguments["optimizer"] == "sgd")
        assert set(trial.params) <= {"optimizer", "sgd.momentum"}
        assert arguments_of(space, trial.params) == arguments


def test_values_of_any_kind_come_back_as_they_are() -> None:
    values = [(64,), (64, 32), {"momentum": 0.9}, len, None]
    space = {"x": values, "one": [{"momentum": 0.9}]}
    for trial, arguments in trials(space):
        assert any(arguments["x"] is value for value in values)
        assert arguments["one"] == {"momentum": 0.9}
        assert isinstance(trial.params["x"], str)  # what every storage can keep


def test_values_that_look_alike_are_told_apart() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd"

    first, second = Odd(), Odd()
    found = {id(arguments["x"]) for _, arguments in trials({"x": [first, second]})}
    assert found == {id(first), id(second)}


def test_widths() -> None:
    found = [arguments["hidden"] for _, arguments in trials({"hidden": Widths((0, 3), (8, 64))})]
    assert {len(widths) for widths in found} == {0, 1, 2, 3}
    assert all(8 <= width <= 64 for widths in found for width in widths)


def test_optunas_own_distributions_and_functions() -> None:
    space = {"x": optuna.distributions.IntDistribution(3, 5)}
    assert {arguments["x"] for _, arguments in trials(space)} == {3, 4, 5}
    found = trials(lambda trial: {"y": trial.suggest_int("y", 1, 2), "z": "constant"})
    assert {(one["y"], one["z"]) for _, one in found} == {(1, "constant"), (2, "constant")}
    with pytest.raises(InputError, match=r"must return a dict of arguments. It returned: 3"):
        trials(lambda trial: 3, 1)


def test_a_grid_has_every_combination_once() -> None:
    space = {
        "a": [1, 2],
        "b": Choice({"x": {}, "y": {"c": Int(0, 2)}}),
        "d": Float(0, 1, step=0.5),
        "e": "constant",
    }
    grid = grid_of(space)
    assert len(grid) == 2 * (1 + 3) * 3
    assert len({tuple(sorted(one.items())) for one in grid}) == len(grid)
    arguments = [arguments_of(space, one) for one in grid]
    assert all(one["e"] == "constant" for one in arguments)
    assert {one.get("c") for one in arguments} == {None, 0, 1, 2}


NESTED = {
    "x": [1, 2],
    "y": Choice({"a": {"w": 5}, "b": {"z": Int(0, 1), "v": Choice({"c": {}, "d": {"u": [3, 4]}})}}),
}


def test_a_choice_within_a_choice_has_a_grid() -> None:
    arguments = [arguments_of(NESTED, one) for one in grid_of(NESTED)]
    assert len(arguments) == 2 * (1 + 2 * (1 + 2))
    assert {one.get("u") for one in arguments} == {None, 3, 4}


def test_a_listed_trial_names_what_its_choice_has() -> None:
    listed: list[dict[str, Any]] = [
        {"x": 1, "y": "a"},
        {"x": 2, "y": "b", "z": 1, "v": "c"},
        {"x": 2, "y": "b", "z": 0, "v": "d", "u": 4},
    ]
    for one in listed:
        found = arguments_of(NESTED, params_of(NESTED, one))
        assert found == ({**one, "w": 5} if one["y"] == "a" else one)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"x": 1, "y": "a", "z": 1}, r"has \['x', 'y', 'z'\], but the space has \['x', 'y'\]"),
        ({"x": 1, "y": "b", "z": 1}, r"but the space has \['v', 'x', 'y', 'z'\] for it"),
        ({"x": 1, "y": "c"}, "'c', which is none of"),
        ({"y": "a"}, r"but the space has \['x', 'y'\]"),
    ],
)
def test_a_listed_trial_that_the_space_does_not_have(listed: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        params_of(NESTED, listed)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"x": Float(2, 1)}, "low is above high"),
        ({"x": Float(0, 1, log=True)}, "low must be above 0"),
        ({"x": Int(5, 4)}, "low is above high"),
        ({"x": Int(1, 4, step=0)}, "step must be at least 1"),
        ({"x": []}, "nothing to choose for 'x'"),
        ({"x": Choice({"a": {"y": Float(2, 1)}})}, "low is above high"),
        ({"x": Choice({"a": 3})}, "a space of its own"),
        ({"x": Widths((3, 2), (8, 16))}, "low is above high"),
        ({"x": Widths((-1, 2), (8, 16))}, "can't have -1 hidden layers"),
        ([1, 2], "space must be a dict"),
        ({3: [1]}, "space must be a dict"),
    ],
)
def test_a_space_that_nobody_can_satisfy(space: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_space(space)


@pytest.mark.parametrize(
    "space", [{"x": Float(0, 1)}, {"x": Widths((1, 2), (8, 16))}, lambda trial: {}]
)
def test_what_has_no_grid(space: Any) -> None:
    with pytest.raises(InputError, match="grid"):
        grid_of(space)


def test_names_and_words() -> None:
    space = {"a": [1], "b": Choice({"x": {"c": 3}})}
    assert names_of(space) == {"a", "b", "c"}
    assert names_of(lambda trial: {}) is None
    assert describe_space({"x": [object()]}) == describe_space({"x": [object()]})
    assert describe_space({"x": Float(0, 1)}) != describe_space({"x": Float(0, 2)})
