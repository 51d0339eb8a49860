from __future__ import annotations

import gc
import weakref

import pytest

from farandole.api import restarts
from farandole.api.restarts import RestartPolicy, run_attempts
from farandole.errors import (
    CheckpointError,
    InputError,
    JobCancelled,
    NotEnoughSlots,
    PeerLost,
    TrainingDiverged,
    WorkerFailed,
    WorkerLost,
    WorkerMissing,
)

LOST = WorkerLost(1, "the process was killed")


def raised_in(update: int, summary: str = "KeyError: 'x'") -> WorkerFailed:
    return WorkerFailed(0, summary, f"Traceback …\nKeyError: 'x'\n(in update {update})")


def test_waits_grow_and_end_with_the_budget() -> None:
    policy = RestartPolicy(most=3)
    assert [policy.wait_before_restart(LOST, saved=0) for _ in range(4)] == [0.5, 1.0, 2.0, None]


def test_progress_gives_a_new_budget() -> None:
    policy = RestartPolicy(most=1)
    waits = [policy.wait_before_restart(LOST, saved=saved) for saved in (0, 10, 20, 20)]
    assert waits == [0.5, 0.5, 0.5, None]


@pytest.mark.parametrize("error", [LOST, PeerLost([1], 60.0), WorkerMissing([1], 60.0)])
def test_what_is_lost_is_tried_again(error: Exception) -> None:
    assert RestartPolicy(most=1).wait_before_restart(error, saved=0) is not None


@pytest.mark.parametrize(
    "error",
    [
        InputError("x"),
        CheckpointError("x"),
        JobCancelled("x"),
        NotEnoughSlots(4, 2),
        TrainingDiverged("x"),
        raised_in(1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_fail_again_is_raised_at_once(error: Exception) -> None:
    assert RestartPolicy(most=3).wait_before_restart(error, saved=0) is None


def test_an_exception_is_tried_again_but_not_twice_in_the_same_update() -> None:
    policy = RestartPolicy(most=10)
    assert policy.wait_before_restart(raised_in(17), saved=15) is not None
    assert policy.wait_before_restart(raised_in(23), saved=15) is not None
    assert policy.wait_before_restart(raised_in(17, "OSError: y"), saved=15) is not None
    assert policy.wait_before_restart(raised_in(17), saved=15) is None


def test_no_restarts_where_none_are_allowed() -> None:
    assert RestartPolicy(most=0).wait_before_restart(LOST, saved=100) is None


def test_attempts_go_on_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(restarts.time, "sleep", waits.append)
    outcomes = iter([LOST, LOST, "done"])
    told: list[Exception] = []

    def attempt() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    found = run_attempts(
        attempt, RestartPolicy(most=2), last_saved=lambda: 0, before_restart=told.append
    )
    assert found == "done"
    assert told == [LOST, LOST]
    assert waits == [0.5, 1.0]


def test_the_last_error_says_how_often_it_was_tried() -> None:
    def attempt() -> None:
        raise WorkerLost(0, "killed")

    policy = RestartPolicy(most=1)
    with pytest.raises(WorkerLost) as caught:
        run_attempts(attempt, policy, last_saved=lambda: 0, before_restart=lambda error: None)
    assert caught.value.__notes__ == ["(1 restarts without progress went before.)"]


class Held:
    """What an attempt works with."""


def test_what_a_failed_attempt_held_is_gone_before_the_next() -> None:
    held: list[weakref.ref[Held]] = []

    def attempt() -> str:
        if held:
            assert held[0]() is None
            return "done"
        rows = Held()
        held.append(weakref.ref(rows))
        try:
            raise ConnectionError
        except ConnectionError as error:
            failure = WorkerLost(1, "killed")  # a frame that knows its own error is a cycle
            raise failure from error

    gc.disable()
    try:
        policy, told = RestartPolicy(most=1), []
        found = run_attempts(
            attempt, policy, last_saved=lambda: 0, before_restart=lambda e: told.append(str(e))
        )
    finally:
        gc.enable()
    assert (found, told) == ("done", ["rank 1 was lost: killed"])
