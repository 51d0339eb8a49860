"""Limits of what fits into a drawing."""

from __future__ import annotations

from farandole.arguments import check_integer


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Raise for what is not an integer from `least` to `most`.

    >>> check_number("workers", 40, 2, 12)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: workers must be an integer from 2 to 12, ... workers=40
    """
    check_integer(name, value, least, most, reason="so that it can be drawn")
