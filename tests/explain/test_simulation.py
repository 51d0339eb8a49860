from __future__ import annotations

import numpy as np
import pytest

from farandole.explain.simulation import (
    PartialSums,
    as_sum,
    finished_parts,
    own_parts,
    sent_by,
    simulate,
)
from farandole.parallel.schedules import (
    Schedule,
    Step,
    all_gather,
    parameter_server,
    ring,
    scatter_reduce,
)

SCHEDULES = [ring(2), ring(3), ring(5), ring(12), parameter_server(5), parameter_server(6, 3)]


def executed_on_numbers(schedule: Schedule) -> list[np.ndarray]:
    """Run a schedule on numbers, by NumPy: worker w's part of a chunk is 2 to the power of w.

    So every sum of parts is a number that no other sum of parts is.
    """
    state = np.repeat(2 ** np.arange(schedule.workers)[:, None], schedule.chunks, axis=1)
    history = []
    for step in schedule.steps():
        coming = state[step.senders, step.chunks]
        state = state.copy()
        if step.adds:
            np.add.at(state, (step.receivers, step.chunks), coming)
        else:
            state[step.receivers, step.chunks] = coming
        history.append(state)
    return history


def as_numbers(held: PartialSums) -> np.ndarray:
    return np.array([[sum(2**part for part in parts) for parts in chunks] for chunks in held])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.name} {s.workers} {s.chunks}")
def test_sets_of_parts_are_what_numbers_come_to(schedule: Schedule) -> None:
    wanted = executed_on_numbers(schedule)
    found = [as_numbers(held) for _, held in simulate(schedule, own_parts(schedule))]
    np.testing.assert_array_equal(found, wanted)
    assert (found[-1] == 2**schedule.workers - 1).all()  # everybody has everything


def test_a_part_that_would_be_added_twice_is_noticed() -> None:
    one, two = np.array([0]), np.array([1])
    step = Step(one, two, np.array([0]), adds=True)
    wrong = Schedule("wrong", 2, 1, lambda: iter([step, step]))
    with pytest.raises(AssertionError):
        list(simulate(wrong, own_parts(wrong)))


def test_shards_are_what_scatter_reduce_leaves_and_all_gather_begins_with() -> None:
    schedule = scatter_reduce(4)
    *_, (_, held) = simulate(schedule, own_parts(schedule))
    shards = finished_parts(held)
    kept = [[chunk for chunk, parts in enumerate(chunks) if parts] for chunks in shards]
    assert kept == [[1], [2], [3], [0]]
    *_, (_, gathered) = simulate(all_gather(4), shards)
    assert {parts for chunks in gathered for parts in chunks} == {frozenset(range(4))}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.name} {s.workers} {s.chunks}")
def test_what_is_sent_step_by_step_is_what_the_schedule_counts(schedule: Schedule) -> None:
    sent = sum(sent_by(schedule, step, 1001) for step in schedule.steps())
    np.testing.assert_array_equal(sent, schedule.sent(1001))


def test_a_sum_is_written_out_or_counted() -> None:
    assert as_sum(5)(4, frozenset(range(5))) == "e1+e2+e3+e4+e5"
    assert as_sum(12)(11, frozenset({3})) == "l 1/12"
    assert as_sum(5)(0, frozenset()) == ""
