"""Checks of JSON by a closed schema: each gives back what it has understood, or refuses.

What is not named in a schema is left out of what comes back, so it never reaches a reader that
might do something with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Refused(ValueError):
    """What is in a file that has no place there."""


Check = Callable[[Any], Any]

_MISSING = object()
_MOST_ENTRIES = 1_000_000


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these fields; further ones are left out."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Refused(f"it has {_kind(value)} where an object should be")
        made = {}
        for key, inner in {**required, **(optional or {})}.items():
            given = value.get(key, _MISSING)
            if given is not _MISSING:
                made[key] = inner(given)
            elif key in required:
                raise Refused(f"it has no {key!r} where there should be one")
        return made

    return check


def one_of(kinds: Mapping[str, Check]) -> Check:
    """An object with exactly one field, which is one of these."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) != 1:
            raise Refused(f"it has {_kind(value)} where one of {', '.join(kinds)} should be")
        [(key, given)] = value.items()
        if key not in kinds:
            raise Refused(f"it has {str(key)[:40]!r}, which no network needs")
        return {key: kinds[key](given)}

    return check


def list_of(inner: Check) -> Check:
    """A list of such values."""

    def check(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
            raise Refused(f"it has {_kind(value)} where a list should be")
        return [inner(one) for one in value]

    return check


def mapping(key: Check, inner: Check) -> Check:
    """An object of such names and values."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > _MOST_ENTRIES:
            raise Refused(f"it has {_kind(value)} where an object should be")
        return {key(one): inner(given) for one, given in value.items()}

    return check


def nullable(inner: Check) -> Check:
    """Such a value, or null."""
    return lambda value: None if value is None else inner(value)


def among(*choices: Any) -> Check:
    """One of a few values, of the same type."""

    def check(value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in choices):
            raise Refused(f"it has {repr(value)[:40]}, and not one of {choices}")
        return value

    return check


def nothing(value: Any) -> Any:
    """An empty list or object."""
    if value not in ([], {}):
        raise Refused("it holds objects of its own, which are more than tensors")
    return value


def integer(value: Any) -> int:
    """A number of 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise Refused(f"it has {repr(value)[:40]} where an integer should be")
    return value


def number(value: Any) -> Any:
    """A number; infinity and nan, which JSON doesn't have, are texts."""
    if type(value) is float or value in ("Infinity", "-Infinity", "NaN"):
        return value
    return integer(value)


def boolean(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise Refused(f"it has {repr(value)[:40]} where true or false should be")
    return value


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
