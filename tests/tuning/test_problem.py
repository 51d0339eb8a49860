"""What is tuned is checked before any trial runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farandole import tune
from farandole.errors import InputError
from farandole.tuning import Choice, Float, Int

CALLS: list[Any] = []


def squared(x: float, *, shift: float = 0.0) -> float:
    CALLS.append(x)
    return (x - shift) ** 2


def of_rows(rows: Any, x: float) -> float:
    CALLS.append(x)
    return x


def of_anything(*tables: Any, **arguments: Any) -> float:
    return 1.0


X = Float(0, 1)
REFUSED: list[tuple[Callable[..., float], dict[str, Any], Any, str]] = [
    (squared, {"x": X, "shfit": X}, None, "'shfit', which is no argument of squared. Did you mean"),
    (squared, {"shift": X}, None, "squared needs an argument 'x', which the space doesn't have"),
    (squared, {"x": X, "y": Choice({"a": {}, "b": {"z": Int(0, 1)}})}, None, "'y', which is no"),
    (of_rows, {"x": X}, None, "needs an argument 'rows'.* Then give data="),
    (lambda *, x: x, {"x": X}, {"a": [1, 2]}, "takes 0 arguments by position"),
    (of_rows, {"x": X, "rows": X}, {"a": [1, 2]}, "'rows', which is no argument of of_rows"),
]


@pytest.mark.parametrize(("function", "space", "data", "message"), REFUSED)
def test_a_function_that_cannot_take_its_arguments(
    function: Callable[..., float], space: dict[str, Any], data: Any, message: str
) -> None:
    CALLS.clear()
    with pytest.raises(InputError, match=message):
        tune(function, space, data, trials=2, engine="local", parallelism=1, progress=False)
    assert not CALLS


def test_any_arguments_and_those_of_a_function_of_a_trial() -> None:
    from farandole.tuning.problem import Problem

    def space(trial: Any) -> dict[str, Any]:
        return {"unknown": trial.suggest_float("unknown", 0, 1)}

    for given in ({"x": X, "y": 3}, space):
        Problem.of(of_anything, given, None, None, 3, {}, object())
    Problem.of(max, {"key": None}, None, None, None, {})  # it doesn't tell what it takes
