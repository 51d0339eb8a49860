from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole import arguments
from farandole.errors import InputError


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, True, "1", None, np.int64(1), [1]])
def test_settings_are_positive_python_integers(value: Any) -> None:
    assert not arguments.is_integer(value)
    with pytest.raises(InputError, match=r"^n must be a positive integer\. Received: n="):
        arguments.check_integer("n", value)


def test_integers_in_a_range() -> None:
    assert arguments.check_integer("n", 2, least=2, most=3) == 2
    assert arguments.check_integer("n", 3, least=2, most=3) == 3
    assert arguments.check_integer("n", -4, least=-4) == -4
    for value in (1, 4):
        with pytest.raises(InputError, match=f"an integer from 2 to 3. Received: n={value}"):
            arguments.check_integer("n", value, least=2, most=3)


def test_an_integer_or_auto() -> None:
    assert arguments.check_integer_or_auto("n", 3) == 3
    for value in (0, True, "3", None):
        with pytest.raises(InputError, match='n must be "auto" or a positive integer'):
            arguments.check_integer_or_auto("n", value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_numpy_integers_are_converted(value: Any) -> None:
    assert type(arguments.as_integer("n", value)) is int
    assert arguments.as_integers("n", np.array([value, value]), 2) == (3, 3)
    assert type(arguments.as_seed(value)) is int


@pytest.mark.parametrize("value", [0, True, 3.0, "3", None])
def test_what_is_not_converted(value: Any) -> None:
    with pytest.raises(InputError, match=r"n must be a positive integer\. Received: n="):
        arguments.as_integer("n", value)
    with pytest.raises(InputError, match="n must be 1 or more positive integers, such as n="):
        arguments.as_integers("n", [3, value], 1)


@pytest.mark.parametrize("values", [[], [3], 3, None, "33"])
def test_too_few_integers(values: Any) -> None:
    with pytest.raises(InputError, match="n must be 2 or more positive integers"):
        arguments.as_integers("n", values, 2)


def test_seeds_have_64_bits() -> None:
    assert arguments.as_seed(None) is None
    assert arguments.as_seed(2**63 - 1) == 2**63 - 1
    assert arguments.as_seed(-(2**63)) == -(2**63)
    for value in (2**63, -(2**63) - 1, 1.0, True):
        with pytest.raises(InputError, match="seed must be an integer of 64 bits, or None"):
            arguments.as_seed(value)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (arguments.check_positive, (1, 0.1), (0, -1, math.nan, math.inf, True, "1", None)),
        (arguments.check_not_negative, (0, 0.0, 2.5), (-0.1, math.nan, math.inf, False, None)),
        (arguments.as_fraction, (0, 0.999), (1, -0.1, math.nan, False, "0.5", None)),
        (arguments.check_flag, (True, False), (0, 1, "yes", None)),
    ],
)
def test_numbers_and_flags(
    check: Callable[[str, Any], Any], good: tuple[Any, ...], bad: tuple[Any, ...]
) -> None:
    assert [check("x", value) for value in good] == list(good)
    for value in bad:
        with pytest.raises(InputError, match=r"^x must be .*\. Received: x="):
            check("x", value)


def test_choices() -> None:
    assert arguments.check_choice("cell", "gru", {"lstm": 1, "gru": 2}) == "gru"
    with pytest.raises(InputError, match=r"^cell must be 'gru'\. Received: cell=None$"):
        arguments.check_choice("cell", None, ["gru"])
    with pytest.raises(InputError, match=r"must be 18, 34 or 50\. Received: depth=19$"):
        arguments.check_choice("depth", 19, [18, 34, 50])
    with pytest.raises(InputError, match=r"Received: cell='grü'\. Did you mean 'gru'\?$"):
        arguments.check_choice("cell", "grü", ["lstm", "gru"])
    with pytest.raises(InputError, match=r"x must be 'a' or 'b'\. Received: x="):
        arguments.check_choice("x", np.array(["a"]), ["a", "b"])
