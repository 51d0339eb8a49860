"""What a full-batch solver is: it walks from point to point, and sees all rows at each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from farandole.errors import InputError

Evaluate = Callable[[torch.Tensor], tuple[float, torch.Tensor]]
"""Weights, flat and in float64 → the objective and its gradient there, over all workers."""


@dataclass(frozen=True)
class Iterate:
    """Where a solver stands."""

    number: int
    """How many iterations led here; 0 is the start."""
    point: torch.Tensor
    value: float
    """The objective that was measured last."""
    step: float = 0.0
    """How far the last step went, in units of its direction."""
    ended: str | None = None
    """Why this is the last one, if it is."""


class Solver(Protocol):
    """Minimises a smooth function of all weights. Every worker runs the same one in step."""

    @property
    def block_size(self) -> int | None:
        """Rows of the blocks whose means are averaged; None for the plain mean of all rows."""
        ...

    def check(self) -> None:
        """Raise for an option that can't be meant."""
        ...

    def iterates(
        self, evaluate: Evaluate, start: torch.Tensor, iterations: int
    ) -> Iterator[Iterate]:
        """The way from `start`, at most so many iterations long."""
        ...


def check_positive(solver: object, *names: str, zero: bool = False) -> None:
    """Raise unless these options are positive numbers, or None where that is their default."""
    for name in names:
        value = getattr(solver, name)
        default = getattr(type(solver), name)
        if value is None and default is None:
            continue
        whole = not isinstance(default, float)
        kind = int if whole else (int, float)
        good = isinstance(value, kind) and not isinstance(value, bool)
        if not good or not (value > 0 or (zero and value == 0)):
            what = "a positive integer" if whole else "a positive number"
            raise InputError(
                f"{type(solver).__name__}: {name} must be {what}. Received: {name}={value!r}"
            )
