"""Wishes: what makes workers end before their time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Wishes:
    """Reasons to end that one worker has, and that all others have to hear of.

    >>> Wishes(interrupted=True) | Wishes(expired=True)
    Wishes(interrupted=True, expired=True, diverged=False)
    """

    interrupted: bool = False
    expired: bool = False
    diverged: bool = False

    def __or__(self, other: Wishes) -> Wishes:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Wishes(*(one or another for one, another in pairs))

    def numbers(self) -> list[float]:
        """To send."""
        return [float(wish) for wish in astuple(self)]

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Wishes:
        """From what was sent.

        >>> Wishes.of([0.0, 1.0, 0.0])
        Wishes(interrupted=False, expired=True, diverged=False)
        """
        return cls(*(number > 0 for number in numbers))
