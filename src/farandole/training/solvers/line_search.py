"""A line search for the strong Wolfe conditions: a fair descent, and a slope that has flattened.

Bracketing, and then cubic interpolation inside the bracket (Nocedal and Wright, chapter 3), with
the constants of breeze, so that steps agree with Spark ML's to the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_DESCENT, _CURVATURE = 1e-4, 0.9
_TRIALS = 10
_GROWTH = 1.5
_MARGIN = 0.1  # how near to the ends of a bracket interpolation may go


class SearchFailed(ArithmeticError):
    """There is no acceptable step in this direction."""


@dataclass(frozen=True)
class Sample:
    """Value and slope along the line, at the distance t."""

    t: float
    value: float
    slope: float

    @property
    def is_finite(self) -> bool:
        """Whether the function could be evaluated there."""
        return math.isfinite(self.value)


@dataclass(frozen=True)
class _Goal:
    """The strong Wolfe conditions, as seen from the start of the line."""

    start: Sample

    def descends(self, sample: Sample) -> bool:
        return sample.value <= self.start.value + _DESCENT * sample.t * self.start.slope

    def is_flat(self, sample: Sample) -> bool:
        return abs(sample.slope) <= _CURVATURE * abs(self.start.slope)


def search(along: Callable[[float], Sample], start: Sample, first: float) -> float:
    """The length of an acceptable step; the last sample is always the accepted one.

    >>> search(lambda t: Sample(t, (t - 1) ** 2, 2 * (t - 1)), Sample(0.0, 1.0, -2.0), 0.5)
    0.5
    """
    if start.slope > 0:
        raise SearchFailed("the direction does not descend")
    goal = _Goal(start)
    low, t = start, first
    for trial in range(_TRIALS):
        sample = along(t)
        if not sample.is_finite:
            t /= 2
        elif not goal.descends(sample) or (sample.value >= low.value and trial > 0):
            return _zoom(along, goal, low, sample)
        elif goal.is_flat(sample):
            return t
        elif sample.slope >= 0:
            return _zoom(along, goal, sample, low)
        else:
            low, t = sample, t * _GROWTH
    raise SearchFailed("no step was long enough")


def _zoom(along: Callable[[float], Sample], goal: _Goal, low: Sample, high: Sample) -> float:
    """Narrow a bracket whose lower end is the best sample so far."""
    for _ in range(_TRIALS):
        sample = along(_between(*sorted((low, high), key=lambda end: end.t)))
        if math.isnan(sample.t):
            raise SearchFailed("interpolation failed")
        if not goal.descends(sample) or sample.value >= low.value:
            high = sample
            continue
        if goal.is_flat(sample):
            return sample.t
        if sample.slope * (high.t - low.t) >= 0:
            high = low
        low = sample
    raise SearchFailed("the bracket held no acceptable step")


def _between(left: Sample, right: Sample) -> float:
    """Where the cubic through two samples has its minimum, kept off the ends."""
    width = right.t - left.t
    d1 = left.slope + right.slope - 3 * (left.value - right.value) / (left.t - right.t)
    square = d1 * d1 - left.slope * right.slope
    if square < 0:
        return math.nan
    d2 = math.sqrt(square)
    t = right.t - width * (right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2)
    return min(max(t, left.t + _MARGIN * width), left.t + (1 - _MARGIN) * width)
