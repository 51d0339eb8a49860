"""Batches are as large as answers stay quick, unless that makes rows expensive."""

from __future__ import annotations

import pytest

from farandole.serving.pace import MOST, MOST_INLINE, SLACK, Times, pace_of

MOST_ROWS = 64


def seconds(times: Times, rows: int) -> float:
    """A straight line through both measurements."""
    return times.one + (times.full - times.one) * (rows - 1) / (MOST_ROWS - 1)


@pytest.mark.parametrize("one", [1e-5, 1e-4, 6e-4, 2e-3, 3e-3, 0.02, 0.5])
@pytest.mark.parametrize("growth", [1.0, 1.1, 4.0, 26.0, 64.0])
def test_no_row_takes_much_longer_than_in_a_full_batch(one: float, growth: float) -> None:
    times = Times(one, one * growth)
    pace = pace_of(times, MOST_ROWS)
    assert 1 <= pace.rows <= MOST_ROWS
    if pace.rows < MOST_ROWS:
        row = seconds(times, pace.rows) / pace.rows
        assert row < (SLACK + 0.1) * times.full / MOST_ROWS or pace.rows == 1
        limit = MOST_INLINE if pace.inline else MOST
        assert seconds(times, pace.rows + 1) > 0.95 * limit  # no smaller than it has to be
    if pace.inline:
        assert seconds(times, pace.rows) <= 1.05 * MOST_INLINE


def test_what_measuring_gives_at_worst() -> None:
    assert pace_of(Times(0.0, 0.0), MOST_ROWS).rows == MOST_ROWS
    assert pace_of(Times(0.002, 0.001), MOST_ROWS).rows == MOST_ROWS  # noise: faster together
    assert pace_of(Times(0.001, 0.001), 1).rows == 1
    assert not pace_of(Times(0.1, 0.1), 1).inline
