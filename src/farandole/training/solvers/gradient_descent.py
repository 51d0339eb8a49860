"""Gradient descent over all rows, with a constant step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from farandole.training.solvers.base import ALL_DONE, Evaluate, Iterate, check_numbers


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """Steps against the gradient, until they have become small; as in Spark ML (`gd`).

    >>> def evaluate(x):
    ...     return float((x ** 2).sum()), 2 * x
    >>> path = GradientDescent(step=0.25).iterates(evaluate, torch.ones(1, dtype=torch.float64), 3)
    >>> [(iterate.number, iterate.value, iterate.point.item()) for iterate in path]
    [(0, 1.0, 1.0), (1, 0.25, 0.5), (2, 0.0625, 0.25), (3, 0.015625, 0.125)]
    """

    step: float = 0.03
    tolerance: float = 1e-6
    """End when a step is shorter than this, relative to the weights."""
    block_size: int | None = None

    def check(self) -> None:
        """Raise for an invalid option."""
        check_numbers(self, "step", "block_size")
        check_numbers(self, "tolerance", zero=True)

    def iterates(
        self, evaluate: Evaluate, start: torch.Tensor | Iterate, iterations: int
    ) -> Iterator[Iterate]:
        """The start, and then each iteration; the last step may be too small to be measured."""
        if isinstance(start, Iterate):
            first, point = start.number + 1, start.memory["following"]
        else:
            first, point = 0, start
        for number in range(first, iterations + 1):
            value, gradient = evaluate(point)
            following = point - self.step * gradient
            step = self.step if number else 0.0
            if number == iterations:
                ended = ALL_DONE
                yield Iterate(number, point, value, step, ended, {"following": following})
            # The first step has none before it to be compared with, and is never the last.
            elif number and self._is_small(point, following):
                ended = "the weights have settled"
                yield Iterate(number, following, value, step, ended, {"following": following})
                return
            else:
                yield Iterate(number, point, value, step, memory={"following": following})
            point = following

    def _is_small(self, before: torch.Tensor, after: torch.Tensor) -> bool:
        moved = torch.linalg.vector_norm(before - after)
        return bool(moved < self.tolerance * max(float(torch.linalg.vector_norm(after)), 1.0))
