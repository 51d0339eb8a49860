from __future__ import annotations

import itertools

import pytest

from farandole.parallel.sharded.zero_redundancy import owners


@pytest.mark.parametrize("sizes", [[5, 4, 3, 3, 3], [1], [7, 7, 7], [100, 1, 1, 1]])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_nobody_has_much_more_than_in_the_best_case(sizes: list[int], workers: int) -> None:
    found = owners(sizes, [0] * workers)

    def most(choice: tuple[int, ...] | list[int]) -> int:
        return max(
            sum(size for size, owner in zip(sizes, choice, strict=True) if owner == worker)
            for worker in range(workers)
        )

    best = min(map(most, itertools.product(range(workers), repeat=len(sizes))))
    assert most(found) <= best * (4 / 3)  # Graham's bound


def test_what_was_given_before_counts() -> None:
    assert owners([5, 5], loads=[100, 0]) == [1, 1]
