"""L-BFGS: Newton's method with a curvature that is guessed from the last few steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from farandole.training.solvers.base import ALL_DONE, Evaluate, Iterate, check_numbers
from farandole.training.solvers.line_search import Sample, SearchFailed, search

_VALUES_WATCHED = 20
_SMALLEST_MOVE = 1e-10
_SMALLEST_GRADIENT = 1e-8


@dataclass(frozen=True, kw_only=True)
class LBFGS:
    """Limited-memory BFGS with a strong Wolfe line search, as in Spark ML (breeze).

    >>> def evaluate(x):
    ...     return float(((x - 3) ** 2).sum()), 2 * (x - 3)
    >>> *_, last = LBFGS().iterates(evaluate, torch.zeros(2, dtype=torch.float64), 10)
    >>> last.point.round(decimals=9).tolist(), last.number, last.ended
    ([3.0, 3.0], 2, 'the gradient is flat')
    """

    memory: int = 10
    """How many of the last steps the curvature is guessed from."""
    tolerance: float = 1e-6
    """End when the objective, relative to the first, or the gradient, relative to the objective,
    gets below this."""
    block_size: int | None = None

    def check(self) -> None:
        """Raise for an invalid option."""
        check_numbers(self, "memory", "block_size")
        check_numbers(self, "tolerance", zero=True)

    def iterates(
        self, evaluate: Evaluate, start: torch.Tensor | Iterate, iterations: int
    ) -> Iterator[Iterate]:
        """The start, and then each iteration.

        After a failed search the same iterate comes again, with an empty memory; after a second
        one in a row it is the last.
        """
        line, is_known = _Line(evaluate), isinstance(start, Iterate)
        if isinstance(start, Iterate):
            iterate, gradient = start, start.memory["gradient"]
            curvature = _Curvature(self.memory, start.memory["pairs"])
            watch = _Watch(self.tolerance, start.memory["first"], start.memory["values"])
            has_failed = start.memory["has_failed"]
        else:
            value, gradient = line.visit(start)
            iterate, curvature = Iterate(0, start, value), _Curvature(self.memory)
            watch, has_failed = _Watch(self.tolerance, value), False
        while True:
            ended = watch.stop_reason(iterate, gradient, iterations)
            memory = {
                "gradient": gradient,
                "has_failed": has_failed,
                **curvature.state(),
                **watch.state(),
            }
            iterate = replace(iterate, ended=ended, memory=memory)
            if not is_known:
                yield iterate
            is_known = False
            if iterate.ended:
                return
            try:
                following = self._step(line, iterate, gradient, curvature)
            except SearchFailed as failure:
                if has_failed:
                    yield replace(iterate, ended=f"the line search failed twice: {failure}")
                    return
                has_failed, curvature = True, _Curvature(self.memory)
                continue
            has_failed = False
            curvature.learn(following.point - iterate.point, line.gradient - gradient)
            iterate, gradient = following, line.gradient
            watch.see(iterate.value)

    def _step(
        self, line: _Line, iterate: Iterate, gradient: torch.Tensor, curvature: _Curvature
    ) -> Iterate:
        direction = curvature.direction(gradient)
        first = 1.0 if iterate.number else 1 / _norm(direction)
        start = Sample(0.0, iterate.value, float(direction @ gradient))
        along = line.through(iterate.point, direction)
        step = search(along, start, first)
        if step * _norm(gradient) < _SMALLEST_MOVE:
            raise SearchFailed("the step vanished")
        return Iterate(iterate.number + 1, line.point, line.value, step)


class _Line:
    """Evaluates along lines, and remembers where it was last."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.point = torch.empty(0)
        self.value = math.nan
        self.gradient = torch.empty(0)

    def visit(self, point: torch.Tensor) -> tuple[float, torch.Tensor]:
        self.point = point
        self.value, self.gradient = self._evaluate(point)
        return self.value, self.gradient

    def through(self, point: torch.Tensor, direction: torch.Tensor) -> _Along:
        return _Along(self, point, direction)


@dataclass(frozen=True)
class _Along:
    line: _Line
    point: torch.Tensor
    direction: torch.Tensor

    def __call__(self, t: float) -> Sample:
        if math.isnan(t):  # nothing to evaluate: the search will say so
            return Sample(t, math.nan, math.nan)
        value, gradient = self.line.visit(self.point + t * self.direction)
        return Sample(t, value, float(gradient @ self.direction))


class _Curvature:
    """The inverse Hessian, as far as the last steps tell; the newest pair comes first."""

    def __init__(
        self, memory: int, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]] = ()
    ) -> None:
        self._pairs: deque[tuple[torch.Tensor, torch.Tensor]] = deque(pairs, maxlen=memory)

    def state(self) -> dict[str, Any]:
        return {"pairs": list(self._pairs)}

    def learn(self, step: torch.Tensor, change: torch.Tensor) -> None:
        self._pairs.appendleft((step, change))

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """Minus the inverse Hessian times the gradient, by two loops over the pairs."""
        found = gradient.clone()
        alphas, rhos = [], []
        for step, change in self._pairs:
            rho = float(step @ change)
            alpha = float(step @ found) / rho if rho else math.nan
            if math.isnan(alpha):
                raise SearchFailed("the curvature is not a number")
            found.add_(change, alpha=-alpha)
            alphas.append(alpha)
            rhos.append(rho)
        found.mul_(self._scale())
        for (step, change), alpha, rho in reversed(
            list(zip(self._pairs, alphas, rhos, strict=True))
        ):
            beta = float(change @ found) / rho
            found.add_(step, alpha=alpha - beta)
        return found.neg_()

    def _scale(self) -> float:
        if not self._pairs:
            return 1.0
        step, change = self._pairs[0]
        curved = float(step @ change)
        if not curved >= 0:
            raise SearchFailed("the curvature is negative")
        return curved / float(change @ change)


class _Watch:
    """Decides when it is enough."""

    # The infinity keeps the objective from being judged before there are enough values.
    def __init__(
        self, tolerance: float, first: float, values: Iterable[float] = (math.inf,)
    ) -> None:
        self._tolerance = tolerance
        self._first = abs(first)
        self._values: deque[float] = deque(values, maxlen=_VALUES_WATCHED)

    def state(self) -> dict[str, Any]:
        return {"first": self._first, "values": list(self._values)}

    def see(self, value: float) -> None:
        self._values.append(value)

    def stop_reason(self, iterate: Iterate, gradient: torch.Tensor, iterations: int) -> str | None:
        """Why to end here; None to go on."""
        if iterate.number >= iterations:
            return ALL_DONE
        change = abs(iterate.value - max(self._values))
        if len(self._values) > 1 and change <= self._tolerance * self._first:
            return "the objective has settled"
        if _norm(gradient) <= max(self._tolerance * abs(iterate.value), _SMALLEST_GRADIENT):
            return "the gradient is flat"
        return None


def _norm(vector: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
