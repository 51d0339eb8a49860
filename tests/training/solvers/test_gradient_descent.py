from __future__ import annotations

import numpy as np
import pytest
import torch

from farandole.training.solvers import GradientDescent, resolve

SCALES = np.array([1.0, 4.0, 0.5])
CENTRE = np.array([1.0, -2.0, 3.0])


def evaluate(x: torch.Tensor) -> tuple[float, torch.Tensor]:
    away = x - torch.from_numpy(CENTRE)
    return float((torch.from_numpy(SCALES) * away**2).sum()), 2 * torch.from_numpy(SCALES) * away


def by_hand(step: float, tolerance: float, iterations: int) -> list[tuple[np.ndarray, float]]:
    """Points and values; the last point is one step further if that step was too short."""
    x = np.zeros(3)
    path = []
    for number in range(iterations + 1):
        value = float(np.sum(SCALES * (x - CENTRE) ** 2))
        following = x - step * 2 * SCALES * (x - CENTRE)
        short = np.linalg.norm(following - x) < tolerance * max(np.linalg.norm(following), 1.0)
        if number not in (0, iterations) and short:
            return [*path, (following, value)]
        path.append((x, value))
        x = following
    return path


@pytest.mark.parametrize("iterations", [0, 1, 25])
def test_the_path_is_that_of_a_loop_by_hand(iterations: int) -> None:
    solver = GradientDescent(step=0.05, tolerance=1e-12)
    found = list(solver.iterates(evaluate, torch.zeros(3, dtype=torch.float64), iterations))
    expected = by_hand(0.05, 1e-12, iterations)
    assert [iterate.number for iterate in found] == list(range(iterations + 1))
    for iterate, (point, value) in zip(found, expected, strict=True):
        np.testing.assert_allclose(iterate.point, point, rtol=1e-12)
        assert iterate.value == pytest.approx(value, rel=1e-12)
    assert found[-1].ended == "all iterations done"
    assert all(iterate.ended is None for iterate in found[:-1])


def test_it_ends_with_the_first_step_that_is_short() -> None:
    solver = GradientDescent(step=0.1, tolerance=1e-2)
    found = list(solver.iterates(evaluate, torch.zeros(3, dtype=torch.float64), 500))
    expected = by_hand(0.1, 1e-2, 500)
    assert len(found) == len(expected) < 60
    assert found[-1].ended == "the weights have settled"
    np.testing.assert_allclose(found[-1].point, expected[-1][0], rtol=1e-12)


def test_the_first_step_is_taken_however_short() -> None:
    solver = GradientDescent(step=1e-9)
    found = list(solver.iterates(evaluate, torch.zeros(3, dtype=torch.float64), 5))
    assert [iterate.number for iterate in found] == [0, 1]


def test_its_rate_is_the_learning_rate() -> None:
    solver = resolve("gd", {"tolerance": 0.5}, 0.2)
    assert solver == GradientDescent(step=0.2, tolerance=0.5)
