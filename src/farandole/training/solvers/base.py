"""Solver: what a full-batch optimizer is. It evaluates all rows at each point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from farandole.arguments import check_integer, check_not_negative, check_positive

Evaluate = Callable[[torch.Tensor], tuple[float, torch.Tensor]]
"""Weights, flat and in float64 → the objective and its gradient there, over all workers."""


ALL_DONE = "all iterations done"
"""Why a solver ended that might have gone on."""


@dataclass(frozen=True)
class Iterate:
    """A point that a solver has reached."""

    number: int
    """How many iterations led here; 0 is the start."""
    point: torch.Tensor
    value: float
    """The objective that was measured last."""
    step: float = 0.0
    """How far the last step went, in units of its direction."""
    ended: str | None = None
    """Why this is the last one, if it is."""
    memory: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What else the solver has to know to go on from here: plain values and tensors."""


class Solver(Protocol):
    """Minimises a smooth function of all weights. Every worker runs the same one in step."""

    @property
    def block_size(self) -> int | None:
        """Rows of the blocks whose means are averaged; None for the plain mean of all rows."""
        ...

    def check(self) -> None:
        """Raise for an invalid option."""
        ...

    def iterates(
        self, evaluate: Evaluate, start: torch.Tensor | Iterate, iterations: int
    ) -> Iterator[Iterate]:
        """The way from `start`, at most so many iterations long; or from an iterate, not again."""
        ...


def check_numbers(solver: object, *names: str, zero: bool = False) -> None:
    """Raise unless these options are positive numbers, or None where that is their default."""
    for name in names:
        value = getattr(solver, name)
        default = getattr(type(solver), name)
        if value is None and default is None:
            continue
        place = f"{type(solver).__name__}.{name}"
        if not isinstance(default, float):
            check_integer(place, value)
        elif zero:
            check_not_negative(place, value)
        else:
            check_positive(place, value)
