from __future__ import annotations

from farandole.engines.failure import Failure
from farandole.engines.verdict import verdict
from farandole.errors import PeerLost, WorkerFailed, WorkerLost

LOST = WorkerLost(1, "stopped")
CLOSED = RuntimeError("Connection closed by peer")
WAITED = RuntimeError("Timed out waiting 60000ms for recv operation to complete")


def judge(
    *failures: Failure, lost: WorkerLost | None = None, finished: tuple[int, ...] = ()
) -> Exception | None:
    return verdict(failures, lost, finished=finished, size=4, timeout=60)


def test_nobody_has_failed() -> None:
    assert judge() is None


def test_a_lost_worker_is_the_cause_of_complaints_about_peers() -> None:
    assert judge(lost=LOST) is LOST
    assert judge(Failure.of(0, CLOSED), Failure.of(2, WAITED), lost=LOST) is LOST


def test_an_error_of_the_users_own_comes_before_the_worker_that_was_lost_by_it() -> None:
    error = judge(Failure.of(0, CLOSED), Failure.of(2, KeyError("mine")), lost=LOST)
    assert isinstance(error, WorkerFailed)
    assert error.rank == 2


def test_who_says_nothing_is_who_the_others_waited_for() -> None:
    error = judge(Failure.of(0, WAITED), Failure.of(2, WAITED), finished=(3,))
    assert isinstance(error, PeerLost)
    assert (error.ranks, error.seconds) == ((1,), 60)


def test_where_all_waited_nobody_can_be_named() -> None:
    error = judge(*(Failure.of(rank, WAITED) for rank in range(4)))
    assert isinstance(error, WorkerFailed)


def test_a_connection_that_was_closed_is_no_wait() -> None:
    error = judge(Failure.of(3, CLOSED))
    assert isinstance(error, WorkerFailed)
    assert error.rank == 3
