"""Strategies: how the workers of a ring share the work of training one network."""

from __future__ import annotations

from farandole.errors import InputError
from farandole.parallel.allreduce import AllReduce
from farandole.parallel.base import Strategy, Synchronizer, Totals
from farandole.parallel.summation import Collective, Summation

__all__ = [
    "AllReduce",
    "Collective",
    "Strategy",
    "Summation",
    "Synchronizer",
    "Totals",
    "resolve",
]

_STRATEGIES = {"allreduce": AllReduce}


def resolve(strategy: str | Strategy) -> Strategy:
    """The strategy that a name stands for.

    >>> resolve("allreduce").name
    'allreduce'
    """
    if isinstance(strategy, str):
        if strategy not in _STRATEGIES:
            names = ", ".join(map(repr, _STRATEGIES))
            raise InputError(f"strategy must be one of {names}. Received: strategy={strategy!r}")
        return _STRATEGIES[strategy]()
    return strategy
