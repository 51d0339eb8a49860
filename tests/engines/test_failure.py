from __future__ import annotations

import pickle

import pytest

from farandole.engines.failure import Failure, first_cause
from farandole.errors import InputError, PeerLost, WorkerFailed, WorkerMissing


class Stubborn(Exception):
    """Pickles, and then fails to come back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("stubborn")


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """Give the error with a traceback."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def failure(rank: int, *, lost_peer: bool) -> Failure:
    return Failure(rank, "", "", None, lost_peer)


def test_a_users_error_is_wrapped_with_rank_traceback_and_cause() -> None:
    error = Failure.of(3, raised(KeyError("missing"))).to_error()
    assert isinstance(error, WorkerFailed)
    assert (error.rank, error.summary) == (3, "KeyError: 'missing'")
    assert "in raised" in error.traceback
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("missing",)


def test_an_error_of_ours_comes_as_it_is_with_a_note() -> None:
    error = Failure.of(1, raised(InputError("column x"))).to_error()
    assert isinstance(error, InputError)
    assert str(error) == "column x"
    assert error.__notes__ == ["(raised on rank 1)"]


def test_sys_exit_is_a_failure_too() -> None:
    error = Failure.of(1, raised(SystemExit(3))).to_error()
    assert isinstance(error, WorkerFailed)
    assert error.summary == "SystemExit: 3"
    assert error.__cause__ is None


def test_an_error_that_does_not_pickle_keeps_its_text() -> None:
    for stubborn in (Stubborn(1, 2), ValueError(open)):
        error = pickle.loads(pickle.dumps(Failure.of(0, raised(stubborn)))).to_error()
        assert isinstance(error, WorkerFailed)
        assert type(stubborn).__name__ in error.summary
    assert Failure.of(0, raised(Stubborn(1, 2))).exception is None


def test_a_failure_is_found_again_in_a_wall_of_text() -> None:
    original = Failure.of(2, raised(ValueError("ü\n<farandole:x>")))
    wall = f"Job aborted\n\tat org.apache…\n  RuntimeError: boom {original.to_text()}\n\tat java…"
    assert Failure.from_text(wall) == original
    assert Failure.from_text("nothing here") is None


def test_a_huge_error_stays_within_what_layers_below_carry() -> None:
    original = Failure.of(2, raised(ValueError("x" * 10_000_000)))
    assert len(original.to_text()) < 400_000
    assert original.summary.startswith("ValueError: xxx")
    assert original.traceback.rstrip().endswith("xxx")


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"), True),
        (RuntimeError("Read error [127.0.0.1]: Connection reset by peer"), True),
        (RuntimeError("Timed out waiting 3000ms for recv operation to complete"), True),
        (RuntimeError("Gloo connectFullMesh failed with ..."), True),
        (raised(ValueError("step 3"), RuntimeError("Connection closed by peer")), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ConnectionResetError("Connection reset by peer"), False),  # not torch's: the user's own
        (raised(WorkerMissing([1], 3), RuntimeError("timed out waiting")), False),
        (raised(PeerLost([1]), BrokenPipeError("Broken pipe")), True),
        (raised(ValueError("step 3"), PeerLost([1])), True),
        (PeerLost([1], 3.0), False),  # it names the one to blame
    ],
)
def test_a_lost_peer_is_told_from_a_cause(error: BaseException, lost: bool) -> None:
    assert Failure.of(0, error).lost_peer is lost


def test_the_first_cause_is_the_first_that_is_no_lost_peer() -> None:
    lost, later, cause = (
        failure(0, lost_peer=True),
        failure(2, lost_peer=False),
        failure(1, lost_peer=False),
    )
    assert first_cause([lost, cause, later]) is cause
    assert first_cause([lost]) is lost
