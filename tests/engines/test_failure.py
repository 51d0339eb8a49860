from __future__ import annotations

import base64
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from farandole.engines.failure import Failure, first_cause, without_failures
from farandole.errors import (
    FarandoleError,
    InputError,
    NotEnoughSlots,
    PeerLost,
    WorkerFailed,
    WorkerMissing,
)

SECRET = b"known to this run only"


class Stubborn(Exception):
    """Pickles, and then fails to come back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("stubborn")


class Demanding(Exception):
    """Has a text only if its constructor was called."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


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
    text = original.to_text(SECRET)
    wall = f"Job aborted\n\tat org.apache…\n  RuntimeError: boom {text}\n\tat java…"
    assert Failure.from_text(wall, SECRET) == replace(original, exception=None)
    assert Failure.from_text("nothing here", SECRET) is None


class Canary:
    """Leaves a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_what_a_stranger_writes_into_a_text_is_only_text(tmp_path: Path) -> None:
    hostile = base64.b64encode(pickle.dumps(Canary(tmp_path / "canary"))).decode()
    true = Failure.of(1, raised(ValueError("the true one")))
    signed = true.to_text(SECRET)
    body, code = signed.removeprefix("<farandole:").removesuffix(">").split(":")
    forged = [
        f"<farandole:{hostile}>",
        f"<farandole:{hostile}:{'0' * 64}>",
        f"<farandole:{hostile}:{code}>",
        f"<farandole:{body}:{'0' * 64}>",
        f"<farandole:{body}>",
        true.to_text(b"the secret of another run"),
        "<farandole:",
        "<farandole::>",
    ]
    assert [Failure.from_text(text, SECRET) for text in forged] == [None] * len(forged)
    assert Failure.from_text(" ".join([*forged, signed]), SECRET) == replace(true, exception=None)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "error",
    [InputError("column x"), PeerLost([1, 2], 3.0), WorkerMissing([1], 3.0), NotEnoughSlots(8, 2)],
)
def test_an_error_of_ours_comes_out_of_a_text_with_its_fields(error: FarandoleError) -> None:
    error.add_note("while it read the rows")
    failure = Failure.from_text(Failure.of(1, raised(error)).to_text(SECRET), SECRET)
    assert failure is not None
    back = failure.to_error()
    assert type(back) is type(error)
    assert str(back) == str(error)
    notes = {"__notes__": ["while it read the rows", "(raised on rank 1)"]}
    assert vars(back) == vars(error) | notes


def test_a_users_error_comes_out_of_a_text_as_its_class_and_its_text() -> None:
    for error, text in ((KeyError("missing"), "'missing'"), (ValueError(1, 2), "(1, 2)")):
        failure = Failure.from_text(Failure.of(1, raised(error)).to_text(SECRET), SECRET)
        assert failure is not None
        cause = failure.to_error().__cause__
        assert type(cause) is type(error)
        assert str(cause) == text


def test_a_class_that_is_not_known_here_or_is_no_exception_leaves_the_text() -> None:
    known = Failure.of(1, raised(ValueError("x")))
    assert known.error is not None
    for module, name in (("no.such.module", "Error"), ("builtins", "eval"), ("os", "system")):
        unknown = replace(
            known, exception=None, error=replace(known.error, module=module, name=name)
        )
        failure = Failure.from_text(unknown.to_text(SECRET), SECRET)
        assert failure is not None
        assert isinstance(failure.to_error(), WorkerFailed)
        assert failure.to_error().__cause__ is None
    demanding = Failure.from_text(Failure.of(0, raised(Demanding(3))).to_text(SECRET), SECRET)
    assert demanding is not None
    assert demanding.to_error().__cause__ is None


def test_what_is_left_in_a_text_can_be_taken_out() -> None:
    text = Failure.of(1, raised(ValueError("x"))).to_text(SECRET)
    assert without_failures(f"rank 1: ValueError: x {text}") == "rank 1: ValueError: x"


FRAMES = """Exception raised from doWait at /torch/csrc/distributed/c10d/TCPStore.cpp:603 \
(most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f5e in libc10.so)
frame #1: <unknown function> + 0x163b752 (0x7f5e5643b752 in libtorch_cpu.so)
<omitting python frames>
frame #27: _start + 0x21 (0x562eb7f59081 in /usr/bin/python)
"""


def test_frames_of_cpp_do_not_bury_the_error() -> None:
    error = raised(RuntimeError(f"wait timeout after 50ms, keys: /x\n{FRAMES}"))
    failure = Failure.of(1, error)
    assert failure.summary == "RuntimeError: wait timeout after 50ms, keys: /x"
    shown = failure.to_error()
    for text in (failure.traceback, str(shown), str(shown.__cause__)):
        assert "wait timeout after 50ms" in text
        assert "frame #" not in text
    assert "in raised" in failure.traceback


def test_a_huge_error_stays_within_what_layers_below_carry() -> None:
    original = Failure.of(2, raised(ValueError("x" * 10_000_000)))
    assert len(original.to_text(SECRET)) < 400_000
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


class Brittle(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(7)


def frames_of(network: nn.Module) -> list[str]:
    """The frames that are told of an error in a network, but for the call from here."""
    with pytest.raises(RuntimeError) as caught:
        network(torch.zeros(2, 3))
    here = caught.value.__traceback__
    assert here is not None
    error = caught.value.with_traceback(here.tb_next)
    text = Failure.of(0, error).traceback
    return [line for line in text.splitlines() if line.startswith("  File ")]


def test_a_traceback_begins_with_the_users_own_frames() -> None:
    (frame,) = frames_of(nn.Sequential(Brittle()))
    assert "in forward" in frame
    assert Path(__file__).name in frame


def test_without_a_frame_of_the_users_all_of_them_are_shown() -> None:
    frames = frames_of(nn.Linear(4, 1))
    assert len(frames) > 1
    assert "linear.py" in frames[-1]
