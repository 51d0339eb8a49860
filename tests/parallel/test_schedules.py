"""Schedules, carried out by NumPy: all workers in one array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from farandole.parallel.schedules import (
    Schedule,
    all_gather,
    parameter_server,
    ring,
    scatter_reduce,
)

SCHEDULES = [
    *[ring(workers) for workers in (1, 2, 3, 5, 8)],
    *[parameter_server(w, s) for w, s in ((1, 1), (2, 1), (2, 2), (5, 1), (5, 3), (8, 8))],
]


def _carry_out(schedule: Schedule, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One row a worker. What is sent in a step is what was there before it."""
    values = values.copy()
    bounds = schedule.bounds(values.shape[1])
    for step in schedule.steps():
        before = values.copy()
        for sender, receiver, chunk in zip(step.senders, step.receivers, step.chunks, strict=True):
            part = slice(*bounds[chunk])
            values[receiver, part] *= step.adds
            values[receiver, part] += before[sender, part]
    return values


def _values(workers: int, size: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(-9, 9, (workers, size))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.name}-{s.workers}-{s.chunks}")
@pytest.mark.parametrize("size", [1, 3, 40, 41])
def test_everybody_ends_with_the_sum(schedule: Schedule, size: int) -> None:
    values = _values(schedule.workers, size)
    ended = _carry_out(schedule, values)
    np.testing.assert_array_equal(ended, np.tile(values.sum(0), (schedule.workers, 1)))


def test_after_scatter_reduce_each_has_the_sum_of_one_chunk() -> None:
    """As the course draws it: of five chunks a to e, the fifth worker has all of a."""
    values = _values(5, 10)
    schedule = scatter_reduce(5)
    ended = _carry_out(schedule, values)
    for worker in range(5):
        part = slice(*schedule.bounds(10)[(worker + 1) % 5])
        np.testing.assert_array_equal(ended[worker, part], values[:, part].sum(0))
    assert schedule.bounds(10)[(4 + 1) % 5] == (0, 2)


def test_all_gather_goes_on_from_there() -> None:
    values = _values(5, 10)
    ended = _carry_out(all_gather(5), _carry_out(scatter_reduce(5), values))
    np.testing.assert_array_equal(ended, _carry_out(ring(5), values))


@pytest.mark.parametrize(("workers", "size"), [(2, 10), (5, 10), (8, 64)])
def test_a_ring_sends_the_same_for_every_worker(workers: int, size: int) -> None:
    assert ring(workers).sent(size).tolist() == [2 * (workers - 1) * size // workers] * workers


def test_two_servers_share_what_one_had_to_do() -> None:
    assert parameter_server(4, 1).sent(12).tolist() == [36, 12, 12, 12]
    assert parameter_server(4, 2).sent(12).tolist() == [6 + 18, 6 + 18, 12, 12]


def test_chunks_cover_a_tensor_that_is_smaller_than_the_ring() -> None:
    bounds = ring(5).bounds(3)
    assert [start for start, _ in bounds] == [0, 0, 1, 1, 2]
    assert sum(end - start for start, end in bounds) == 3
