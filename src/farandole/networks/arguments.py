"""What a network's arguments may be, and what is said about those they may not be."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from farandole.errors import InputError, suggestion


def whole(name: str, value: Any, least: int = 1) -> int:
    """Take a whole number that is not below `least`.

    >>> whole("hidden", 0)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: hidden must be a whole number ≥ 1. Received: hidden=0
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number ≥ {least}. Received: {name}={value!r}")
    return number


def wholes(name: str, values: Any, count: int) -> tuple[int, ...]:
    """Take at least `count` positive whole numbers.

    >>> wholes("filters", [16, 32], 1)
    (16, 32)
    """
    try:
        return tuple(whole(name, value) for value in _at_least(count, values))
    except (TypeError, InputError):
        raise InputError(
            f"{name} must be {count} or more positive whole numbers, such as "
            f"{name}={[16, 32, 64][: max(count, 2)]}. Received: {name}={values!r}"
        ) from None


def fraction(name: str, value: Any) -> float:
    """Take a share, from 0 to below 1.

    >>> fraction("dropout", 0.5)
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name} must be from 0 to below 1. Received: {name}={value!r}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Take a yes or no.

    >>> flag("batch_norm", 0.5)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: batch_norm must be True or False. Received: batch_norm=0.5
    """
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False. Received: {name}={value!r}")
    return value


def seed_of(value: Any) -> int | None:
    """Take a seed: a whole number of 64 bits, or None.

    >>> seed_of(-1)
    -1
    """
    number = value if value is None else whole("seed", value, least=-(2**63))
    if number is not None and number >= 2**63:
        raise InputError(f"seed must be below 2^63. Received: seed={value!r}")
    return number


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Take one of the known names.

    >>> choice("cell", "lstn", ["lstm", "gru"])
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no cell 'lstn'. Did you mean 'lstm'?
    """
    names = list(known)
    if not isinstance(value, str):
        raise InputError(f"{name} must be one of {', '.join(names)}. Received: {name}={value!r}")
    if value not in names:
        raise InputError(f"There is no {name} {value!r}. {suggestion(value, names)}")
    return value


def _at_least(count: int, values: Any) -> list[Any]:
    found = list(values)
    if len(found) < count or isinstance(values, str):
        raise TypeError
    return found
