from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from farandole.checkpoint.names import CheckpointName
from farandole.checkpoint.retention import Candidate, dispensable

SCORES = st.none() | st.floats() | st.sampled_from([0.1, 0.2])
CANDIDATES = st.dictionaries(
    st.builds(CheckpointName, st.integers(0, 12), st.integers(1, 2)),
    st.tuples(st.booleans(), SCORES),
    min_size=1,
).map(lambda found: [Candidate(name, *about) for name, about in found.items()])


def gone(candidates: list[Candidate], written: int, **options: int) -> list[int]:
    settings = {"keep_last": 1, "keep_best": 0, "higher_is_better": False, **options}
    found = dispensable(candidates, CheckpointName(written), **settings)  # type: ignore[arg-type]
    return [name.update for name in found]


def some(*about: tuple[int, bool, float | None]) -> list[Candidate]:
    return [Candidate(CheckpointName(update), whole, score) for update, whole, score in about]


def test_the_last_and_the_best_stay() -> None:
    found = some((1, True, 0.3), (2, True, 0.1), (3, True, None), (4, True, 0.2), (5, True, 0.4))
    assert gone(found, 5, keep_last=2, keep_best=1) == [1, 3]
    assert gone(found, 5, keep_last=1, keep_best=2) == [1, 3]
    assert gone(found, 5, keep_last=1, keep_best=1, higher_is_better=True) == [1, 2, 3, 4]


def test_nan_is_no_score() -> None:
    assert gone(some((1, True, math.nan), (2, True, 5.0), (3, True, None)), 3, keep_best=1) == [1]


def test_damaged_ones_take_nobodys_place() -> None:
    found = some((1, True, 0.5), (2, False, None), (3, False, None), (4, True, None))
    assert gone(found, 4, keep_last=2) == [2, 3]


def test_what_comes_after_is_left_alone() -> None:
    found = some((3, True, None), (4, True, None), (9, True, None), (10, False, None))
    assert gone(found, 4) == [3]


def test_what_was_just_written_stays_whatever_is_said_of_it() -> None:
    assert gone(some((3, True, None), (4, False, None)), 4) == []


@given(CANDIDATES, st.integers(1, 3), st.integers(0, 3), st.booleans(), st.data())
def test_what_stays(
    candidates: list[Candidate], last: int, best: int, higher: bool, data: st.DataObject
) -> None:
    """Sorted by hand: nothing better is deleted than what is kept for its score."""
    written = data.draw(st.sampled_from(candidates))
    written = written._replace(whole=True)
    candidates = [written if one.name == written.name else one for one in candidates]
    deleted = set(
        dispensable(
            candidates, written.name, keep_last=last, keep_best=best, higher_is_better=higher
        )
    )
    past = [one for one in candidates if one.name <= written.name]
    newest = {one.name.update: one for one in sorted(past, key=lambda one: one.name) if one.whole}
    kept = [one for one in newest.values() if one.name not in deleted]
    assert written.name not in deleted
    assert deleted <= {one.name for one in past}
    assert set(sorted(newest)[-last:]) <= {one.name.update for one in kept}
    assert len(past) - len(deleted) <= last + best
    scores = [
        one.score for one in newest.values() if one.score is not None and not math.isnan(one.score)
    ]
    wanted = sorted(scores, reverse=higher)[:best]
    assert all(any(one.score == score for one in kept) for score in wanted)
