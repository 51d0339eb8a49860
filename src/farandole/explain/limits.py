"""Limits of what fits into a drawing."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.errors import InputError


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Raise for what is not a whole number from `least` to `most`.

    >>> check_number("workers", 40, 2, 12)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: workers must be a whole number from 2 to 12, ... workers=40
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_whole and least <= value <= most):  # type: ignore[operator]
        raise InputError(
            f"{name} must be a whole number from {least} to {most:,}, so that it can be drawn. "
            f"Received: {name}={value!r}"
        )


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise for what is not among the choices.

    >>> check_choice("schedule", "gpip", ["gpipe", "1f1b"])
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: schedule must be 'gpipe' or '1f1b'. Received: schedule='gpip'
    """
    if value not in choices:
        names = [repr(choice) for choice in choices]
        listed = ", ".join(names[:-1]) + f" or {names[-1]}"
        raise InputError(f"{name} must be {listed}. Received: {name}={value!r}")
