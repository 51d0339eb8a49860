"""Checks of arguments, and what is said about a value that can't be used.

`check_…` raises, or returns the value as it was given. `as_…` also converts: NumPy's integers,
such as `y.max() + 1`, become Python's.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from farandole.errors import InputError

T = TypeVar("T")

ALL_BUT_HEAD = "all but head"
"""What `freeze` takes besides names of layers."""

_SEEDS = 2**63
_MOST_SECONDS = 1e9


def is_integer(value: Any, least: int = 1, most: float = math.inf) -> bool:
    """Whether a value is a Python integer in a range; True and False are not.

    >>> is_integer(3), is_integer(0), is_integer(True), is_integer(3.0)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_integer(
    name: str, value: Any, least: int = 1, most: float = math.inf, reason: str = ""
) -> int:
    """Raise unless a value is an integer from `least` to `most`.

    >>> check_integer("epochs", 0)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: epochs must be a positive integer. Received: epochs=0
    >>> check_integer("workers", 40, least=2, most=12, reason="so that they can be drawn")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: workers must be an integer from 2 to 12, so that they can be drawn.
    Received: workers=40
    """
    if not is_integer(value, least, most):
        wanted = _range(least, most) + (f", {reason}" if reason else "")
        raise _refusal(name, wanted, value)
    return int(value)


def check_integer_or_auto(name: str, value: T) -> T:
    """Raise unless a value is a positive integer or "auto".

    >>> check_integer_or_auto("batch_size", "auto")
    'auto'
    >>> check_integer_or_auto("batch_size", "all")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: batch_size must be "auto" or a positive integer. Received: ...
    """
    if not (is_integer(value) or (isinstance(value, str) and value == "auto")):
        raise _refusal(name, '"auto" or a positive integer', value)
    return value


def as_integer(name: str, value: Any, least: int = 1) -> int:
    """Convert to an integer that is not below `least`.

    >>> as_integer("hidden", 0)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: hidden must be a positive integer. Received: hidden=0
    """
    number = _index(value)
    if number is None or number < least:
        raise _refusal(name, _range(least, math.inf), value)
    return number


def as_integers(name: str, values: Any, count: int) -> tuple[int, ...]:
    """Convert to `count` or more positive integers.

    >>> as_integers("filters", [16, 32], 1)
    (16, 32)
    """
    try:
        found = tuple(as_integer(name, value) for value in values)
    except (TypeError, InputError):
        found = ()
    if len(found) < count:
        example = f"{name}={[16, 32, 64][: max(count, 2)]}"
        raise _refusal(name, f"{count} or more positive integers, such as {example}", values)
    return found


def as_seed(value: Any) -> int | None:
    """Convert to a seed: an integer of 64 bits, or None.

    >>> as_seed(-1)
    -1
    """
    number = _index(value)
    if value is not None and (number is None or not -_SEEDS <= number < _SEEDS):
        raise _refusal("seed", "an integer of 64 bits, or None", value)
    return number


def check_positive(name: str, value: Any) -> float:
    """Raise unless a value is a finite number above 0.

    >>> check_positive("learning_rate", -1)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: learning_rate must be a positive number. Received: learning_rate=-1
    """
    if not (_is_number(value) and value > 0):
        raise _refusal(name, "a positive number", value)
    return float(value)


def check_seconds(name: str, value: Any) -> float:
    """Raise unless a value is a positive number of seconds that a clock can count.

    >>> check_seconds("timeout", 0)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: timeout must be a positive number of seconds. Received: timeout=0
    """
    if not (_is_number(value) and 0 < value < _MOST_SECONDS):
        raise _refusal(name, "a positive number of seconds", value)
    return float(value)


def check_not_negative(name: str, value: Any) -> float:
    """Raise unless a value is a finite number of 0 or more.

    >>> check_not_negative("min_delta", 0.0)
    0.0
    """
    if not (_is_number(value) and value >= 0):
        raise _refusal(name, "a number that is not negative", value)
    return float(value)


def as_fraction(name: str, value: Any) -> float:
    """Convert to a number from 0 to below 1.

    >>> as_fraction("dropout", 0.5)
    0.5
    """
    if not (_is_number(value) and 0 <= value < 1):
        raise _refusal(name, "a number from 0 to below 1", value)
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """Raise unless a value is True or False.

    >>> check_flag("batch_norm", 0.5)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: batch_norm must be True or False. Received: batch_norm=0.5
    """
    if not isinstance(value, bool):
        raise _refusal(name, "True or False", value)
    return value


def as_names(name: str, value: Any) -> tuple[str, ...]:
    """Convert a column's name, or several of them, to a tuple; None to an empty one.

    >>> as_names("features", "x"), as_names("features", ["x", "y"])
    (('x',), ('x', 'y'))
    >>> as_names("features", 3)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: features must be a column's name, or a list of them. Received: \
features=3
    """
    if isinstance(value, str) or value is None:
        return () if value is None else (value,)
    several = isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)
    names = tuple(value) if several else (None,)
    if not all(isinstance(one, str) for one in names):
        raise _refusal(name, "a column's name, or a list of them", value)
    return names


def check_path(name: str, value: Any) -> None:
    """Raise unless a value is the path of a file.

    >>> check_path("trace", 3)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: trace must be the path of a file. Received: trace=3
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise _refusal(name, "the path of a file", value)


def check_function(name: str, value: Any) -> None:
    """Raise unless a value can be called.

    >>> check_function("observer", 3)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: observer must be a function. Received: observer=3
    """
    if not callable(value):
        raise _refusal(name, "a function", value)


def check_choice(name: str, value: T, choices: Iterable[Any]) -> T:
    """Raise unless a value is one of the choices.

    >>> check_choice("cell", "lstn", ["lstm", "gru"])
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: cell must be 'lstm' or 'gru'. Received: cell='lstn'. Did you mean
    'lstm'?
    """
    known = list(choices)
    if any(isinstance(value, type(one)) and value == one for one in known):
        return value
    *names, last = map(repr, known)
    error = _refusal(name, f"{', '.join(names)} or {last}" if names else last, value)
    close = get_close_matches(value, map(str, known), n=1) if isinstance(value, str) else ()
    raise InputError(f"{error}. Did you mean {close[0]!r}?") if close else error


def _range(least: int, most: float) -> str:
    if most != math.inf:
        return f"an integer from {least} to {most:,}"
    return "a positive integer" if least == 1 else f"an integer of {least} or more"


def _refusal(name: str, wanted: str, value: Any) -> InputError:
    return InputError(f"{name} must be {wanted}. Received: {name}={value!r}")


def _index(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_dict(name: str, value: Any, of: str, example: Mapping[str, Any]) -> None:
    """Raise unless the value is a dict of what it should be of, with something in it.

    >>> check_dict("rates", 0.1, "layers and rates", {"head": 0.1})
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: rates must be a dict of layers and rates, such as {'head': 0.1}. \
Received: rates=0.1
    """
    if not isinstance(value, Mapping) or not value:
        raise InputError(
            f"{name} must be a dict of {of}, such as {example}. Received: {name}={value!r}"
        )
