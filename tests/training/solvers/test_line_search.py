from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from farandole.training.solvers.line_search import Sample, SearchFailed, search

Function = Callable[[float], float]


class Line:
    """A function along a line, which remembers where it was evaluated."""

    def __init__(self, value: Function, slope: Function) -> None:
        self.value, self.slope = value, slope
        self.visited: list[float] = []

    def __call__(self, t: float) -> Sample:
        self.visited.append(t)
        return Sample(t, self.value(t), self.slope(t))

    def search(self, first: float) -> float:
        return search(self, Sample(0.0, self.value(0.0), self.slope(0.0)), first)


def assert_strong_wolfe(line: Line, t: float) -> None:
    """Nocedal and Wright, (3.7): c1 = 1e-4, c2 = 0.9."""
    slope = line.slope(0.0)
    assert t > 0
    assert line.value(t) <= line.value(0.0) + 1e-4 * t * slope
    assert abs(line.slope(t)) <= 0.9 * abs(slope)


def wavy(a: float, b: float, c: float, frequency: float) -> Line:
    """A bowl with a hill or two in it, downhill at the start."""
    down = -(abs(a) + abs(b * frequency) + 0.1)
    return Line(
        lambda t: down * t + c * t**2 + a * math.sin(t) + b * math.cos(frequency * t),
        lambda t: down + 2 * c * t + a * math.cos(t) - b * frequency * math.sin(frequency * t),
    )


sizes = st.floats(-3, 3)


@given(sizes, sizes, st.floats(0.01, 5), st.floats(0.1, 4), st.floats(-3, 1.5))
@example(0.0, 0.0, 1.0, 1.0, 1.5)
def test_an_accepted_step_keeps_the_conditions_and_was_visited_last(
    a: float, b: float, c: float, frequency: float, exponent: float
) -> None:
    line = wavy(a, b, c, frequency)
    try:
        t = line.search(10**exponent)
    except SearchFailed:
        assume(False)
    assert_strong_wolfe(line, t)
    assert line.visited[-1] == t


@given(st.floats(-5, 2), st.floats(-3, 3))
def test_every_parabola_has_an_acceptable_step(place: float, steepness: float) -> None:
    lowest, scale = 10**place, 10**steepness
    line = Line(lambda t: scale * (t - lowest) ** 2, lambda t: 2 * scale * (t - lowest))
    assert_strong_wolfe(line, line.search(1.0))


def test_a_step_grows_by_half_until_the_slope_has_flattened() -> None:
    line = Line(lambda t: (t - 100) ** 2, lambda t: 2 * (t - 100))
    assert line.search(1.0) == pytest.approx(1.5**6)
    assert line.visited == pytest.approx([1.5**n for n in range(7)])


@pytest.mark.parametrize("outside", [math.inf, math.nan])
def test_a_step_is_halved_until_the_function_can_be_evaluated(outside: float) -> None:
    line = Line(
        lambda t: -math.log(1 - t) - 3 * t if t < 1 else outside,
        lambda t: 1 / (1 - t) - 3 if t < 1 else math.nan,
    )
    t = line.search(100.0)
    assert line.visited[:8] == [100 / 2**n for n in range(8)]
    assert_strong_wolfe(line, t)


def test_what_can_not_be_evaluated_at_all_fails_after_ten_trials() -> None:
    line = Line(lambda t: math.nan if t else 1.0, lambda t: -1.0)
    with pytest.raises(SearchFailed, match="long enough"):
        line.search(1.0)
    assert len(line.visited) == 10


def test_a_function_that_only_falls_fails() -> None:
    with pytest.raises(SearchFailed, match="long enough"):
        Line(lambda t: -t, lambda t: -1.0).search(1.0)


def test_a_direction_uphill_is_refused_unseen() -> None:
    line = Line(lambda t: t, lambda t: 1.0)
    with pytest.raises(SearchFailed, match="descend"):
        line.search(1.0)
    assert line.visited == []


def test_a_slope_that_lies_fails_inside_of_the_bracket() -> None:
    line = Line(lambda t: t, lambda t: -1.0)  # it rises, whatever its slope says
    with pytest.raises(SearchFailed, match=r"bracket|interpolation"):
        line.search(1.0)
