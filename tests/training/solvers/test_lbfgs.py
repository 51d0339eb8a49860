from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import LbfgsInvHessProduct, minimize, rosen, rosen_der

from farandole.errors import InputError
from farandole.training.solvers import LBFGS, Iterate, resolve

Array = np.ndarray[Any, Any]


class Function:
    """A NumPy function for a solver, which counts how often it is asked."""

    def __init__(self, value: Any, gradient: Any) -> None:
        self.value, self.gradient = value, gradient
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> tuple[float, torch.Tensor]:
        self.calls += 1
        return float(self.value(x.numpy())), torch.from_numpy(np.asarray(self.gradient(x.numpy())))

    def walk(self, start: Array, iterations: int = 200, **options: Any) -> list[Iterate]:
        path = LBFGS(**options).iterates(self, torch.from_numpy(start), iterations)
        return list(path)


def quadratic(size: int, condition: float, seed: int = 0) -> tuple[Function, Array]:
    """A bowl with axes of very different lengths, and its lowest point."""
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(size, size)))
    matrix = turn @ np.diag(np.geomspace(1, condition, size)) @ turn.T
    centre = random.normal(size=size)
    value = lambda x: (x - centre) @ matrix @ (x - centre) / 2  # noqa: E731
    return Function(value, lambda x: matrix @ (x - centre)), centre


@pytest.mark.parametrize("size", [2, 5, 20])
def test_rosenbrock_ends_where_scipy_does(size: int) -> None:
    start = np.tile([-1.2, 1.0], size)[:size]
    last = Function(rosen, rosen_der).walk(start, tolerance=1e-9)[-1]
    scipy = minimize(rosen, start, jac=rosen_der, method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(last.point, scipy.x, atol=1e-5)
    assert last.number < 150


def test_a_quadratic_ends_where_scipy_does() -> None:
    function, centre = quadratic(30, 100.0)
    start = np.zeros(30)
    last = function.walk(start, 2000, tolerance=1e-12)[-1]
    scipy = minimize(function.value, start, jac=function.gradient, method="L-BFGS-B", tol=1e-14)
    np.testing.assert_allclose(last.point, centre, atol=1e-5)
    assert last.value <= scipy.fun + 1e-9


@pytest.mark.parametrize("memory", [1, 3, 10])
def test_directions_are_those_of_scipys_inverse_hessian(memory: int) -> None:
    path = Function(rosen, rosen_der).walk(np.tile([-1.2, 1.0], 4), memory=memory, iterations=20)
    points = np.array([iterate.point.numpy() for iterate in path])
    gradients = np.array([rosen_der(point) for point in points])
    for number in range(1, 20):
        pairs = slice(max(0, number - memory), number)
        steps, changes = np.diff(points, axis=0)[pairs], np.diff(gradients, axis=0)[pairs]
        scale = steps[-1] @ changes[-1] / (changes[-1] @ changes[-1])
        # SciPy begins with the identity: with γ it is the same for steps that are γ times shorter.
        inverse = LbfgsInvHessProduct(steps / scale, changes)
        found = (points[number + 1] - points[number]) / path[number + 1].step
        expected = -scale * inverse.matvec(gradients[number])
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_the_first_step_has_the_length_one() -> None:
    function, _ = quadratic(6, 100.0)
    path = function.walk(np.zeros(6), iterations=1)
    gradient = function.gradient(np.zeros(6))
    assert np.linalg.norm(path[1].point) == pytest.approx(path[1].step * np.linalg.norm(gradient))
    longer = [1 / np.linalg.norm(gradient) * 1.5**n for n in range(10)]
    assert any(path[1].step == pytest.approx(step) for step in longer)


def test_values_and_slopes_of_all_iterates() -> None:
    function = Function(rosen, rosen_der)
    path = function.walk(np.tile([-1.2, 1.0], 4), iterations=30)
    assert [iterate.number for iterate in path] == list(range(31))
    for before, after in pairwise(path):
        assert after.value == rosen(after.point.numpy())
        slope = (after.point - before.point).numpy() @ rosen_der(before.point.numpy())
        assert after.value <= before.value + 1e-4 * slope
        there = (after.point - before.point).numpy() @ rosen_der(after.point.numpy())
        assert abs(there) <= 0.9 * abs(slope)


@pytest.mark.parametrize("iterations", [0, 1, 7])
def test_it_ends_after_so_many_iterations(iterations: int) -> None:
    path = Function(rosen, rosen_der).walk(np.array([-1.2, 1.0]), iterations)
    assert [iterate.number for iterate in path] == list(range(iterations + 1))
    assert path[-1].ended == "all iterations done"
    assert all(iterate.ended is None for iterate in path[:-1])


def test_it_ends_where_the_gradient_is_flat() -> None:
    function = Function(rosen, rosen_der)
    (only,) = function.walk(np.ones(4))
    assert only.ended == "the gradient is flat"
    assert (only.number, function.calls) == (0, 1)


def test_flat_is_relative_to_the_objective() -> None:
    high = Function(lambda x: rosen(x) + 1e6, rosen_der)
    last = high.walk(np.array([-1.2, 1.0]), tolerance=1e-6)[-1]
    assert np.linalg.norm(rosen_der(last.point.numpy())) <= 1e-6 * (last.value + 1e-9)
    assert last.ended == "the gradient is flat"


def test_it_ends_when_the_objective_has_settled_over_twenty_values() -> None:
    tolerance = 1e-4
    function, _ = quadratic(200, 1e7)
    path = function.walk(np.zeros(200), 2000, tolerance=tolerance, memory=2)
    assert path[-1].ended == "the objective has settled"
    values = np.array([iterate.value for iterate in path])
    last = len(path) - 1
    assert last >= 20
    settled = [
        number
        for number in range(20, len(path))
        if values[number - 19 : number + 1].max() - values[number] <= tolerance * values[0]
    ]
    assert settled == [last]


def test_more_memory_needs_fewer_iterations() -> None:
    numbers = []
    for memory in (1, 20):
        function, _ = quadratic(60, 1e3)
        numbers.append(function.walk(np.zeros(60), 2000, memory=memory, tolerance=1e-8)[-1].number)
    assert numbers[1] < 0.8 * numbers[0]


def test_two_failed_searches_are_the_end() -> None:
    start = np.array([1.0, 2.0])
    function = Function(
        lambda x: 1.0 if (x == start).all() else math.nan, lambda x: np.array([1.0, 1.0])
    )
    path = function.walk(start)
    assert [iterate.number for iterate in path] == [0, 0, 0]
    assert path[-1].ended is not None
    assert "the line search failed twice" in path[-1].ended
    assert all((iterate.point.numpy() == start).all() for iterate in path)
    assert function.calls == 1 + 2 * 10


class Wall(Function):
    """A function that can't be evaluated for a while, more than once."""

    closed = (range(4, 14), range(18, 28))

    def __call__(self, x: torch.Tensor) -> tuple[float, torch.Tensor]:
        value, gradient = super().__call__(x)
        return math.inf if any(self.calls in calls for calls in self.closed) else value, gradient


def test_a_failed_search_forgets_and_goes_on() -> None:
    function = Wall(lambda x: float((x**4).sum()), lambda x: 4 * x**3)
    path = function.walk(np.array([3.0, -2.0]), 60, tolerance=1e-8)
    again = [n for n, (a, b) in enumerate(pairwise(path), 1) if a.number == b.number]
    assert len(again) == 2
    assert again[1] > again[0] + 1  # a success lies between them, so it is not the end
    assert path[-1].value < 1e-6
    for number in again:  # without a memory the direction is the steepest
        here, there = path[number], path[number + 1]
        move = (there.point - here.point).numpy() / there.step
        np.testing.assert_allclose(move, -4 * here.point.numpy() ** 3)


def test_names_and_options() -> None:
    assert resolve("lbfgs", {"memory": 5}, 0.1) == LBFGS(memory=5)
    assert resolve("L-BFGS", {"block_size": 7}, 0.1) == LBFGS(block_size=7)
    assert resolve("adam", {}, 0.1) is None
    own = LBFGS(tolerance=0.5)
    assert resolve(own, {}, 0.1) is own
    with pytest.raises(InputError, match="Did you mean 'memory'"):
        resolve("lbfgs", {"memry": 5}, 0.1)
