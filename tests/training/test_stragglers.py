from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from farandole.training.stragglers import Straggler, StragglerWatch, stragglers


def test_slow_is_by_row_and_far_from_the_others() -> None:
    assert stragglers([10.0, 10.0, 100.0], [5, 5, 5]) == [Straggler(2, 10.0)]
    assert stragglers([10.0, 10.0, 100.0], [5, 5, 50]) == []  # it has more rows
    assert stragglers([10.0, 10.0, 25.0], [5, 5, 5]) == []  # it is a bit slow
    assert stragglers([0.01, 0.01, 0.1], [5, 5, 5]) == []  # nobody would notice
    assert stragglers([10.0, 100.0], [5, 5]) == [Straggler(1, 10.0)]


def test_workers_without_rows_do_not_count() -> None:
    assert stragglers([0.0, 10.0, 100.0], [0, 5, 5]) == [Straggler(2, 10.0)]
    assert stragglers([0.0, 100.0], [0, 5]) == []
    assert stragglers([], []) == []


def test_each_worker_adds_its_own_and_each_straggler_is_told_once() -> None:
    """Oracle: the sums themselves, made by hand."""
    barrier, shared = Barrier(2), [torch.empty(0)] * 2

    def train(rank: int) -> list[list[Straggler]]:
        watch, found = StragglerWatch(rank, 2), []

        def reduce_sums(values: torch.Tensor) -> torch.Tensor:
            shared[rank] = values
            barrier.wait()
            summed = shared[0] + shared[1]
            barrier.wait()
            return summed

        for _ in range(2):
            watch.add([2.0, 30.0][rank], 10)
            watch.add([3.0, 30.0][rank], 10)
            sums = watch.reduce(reduce_sums, torch.tensor([1.0, 2.0], dtype=torch.float64))
            assert sums.tolist() == [2.0, 4.0]
            found.append(watch.found)
        return found

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(train, range(2)))
    assert results == [[[Straggler(1, 12.0)], []]] * 2
