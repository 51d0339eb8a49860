"""A writer that is killed at each of its calls, one after the other; and two writers at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checkpoint.snapshots import same, snapshot

from farandole.checkpoint import CheckpointDirectory

pytestmark = pytest.mark.integration
NEVER = 0
ROOT = Path(__file__).resolve().parent.parent.parent


class Writer:
    """A process that writes, and dies when it is told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.checkpoint.killed_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def begin(self, update: int, folder: Path, die_at: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{die_at} {update} {folder}\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """How a write ended: 0, or minus the signal that ended it."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def writers() -> Iterator[list[Writer]]:
    both = [Writer(), Writer()]
    yield both
    for one in both:
        one.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory: a kill loses nothing that was written, flushed or not, and it is quick."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize(
    ("before", "update"),
    [
        pytest.param([], 2, id="the first"),
        pytest.param([1], 2, id="the next", marks=pytest.mark.exhaustive),
        pytest.param([1, 2], 2, id="the same again"),
    ],
)
@pytest.mark.fault(
    "SIGKILL of a writer at every system call of a checkpoint", "the old or the new one is whole"
)
def test_killed_at_every_call(
    writers: list[Writer], folder: Path, before: list[int], update: int
) -> None:
    """Whole is what is found: the old one, or the new one. And nothing is left of the killed."""
    start, place = folder / "start", folder / "place"
    first = CheckpointDirectory(start, keep_last=2)
    first.prepare()
    for number in before:
        first.write(snapshot(number))
    seen, calls = set(), 0
    while True:
        calls += 1
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(start, place)
        writers[0].begin(update, place, die_at=calls)
        code = writers[0].end()
        seen.add(check(place, before))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert calls > 30
    assert seen == {max(before, default=None), update}


def check(folder: Path, before: list[int]) -> int | None:
    directory = CheckpointDirectory(folder, keep_last=1)
    found = directory.load()  # a damaged one would be a warning, which is an error
    assert found is None or same(found, snapshot(found.update))
    assert (found is None) <= (not before)
    directory.prepare()
    assert {"latest", *directory.names()} >= set(os.listdir(folder))
    directory.write(snapshot(3))
    assert sorted(os.listdir(folder)) == ["latest", "step-0000000003"]
    assert same(directory.load(), snapshot(3))
    return None if found is None else found.update


@pytest.mark.fault("two attempts write the same checkpoints", "both are whole")
def test_two_writers_at_once(writers: list[Writer], folder: Path) -> None:
    """A writer of an old attempt goes on beside the new one's, at the same updates."""
    directory = CheckpointDirectory(folder)
    for update in range(30):
        for writer in writers:
            writer.begin(update, folder, die_at=NEVER)
        found = directory.load()  # whole at any time
        assert found is None or same(found, snapshot(found.update))
        assert [writer.end() for writer in writers] == [0, 0]
        assert same(directory.load(), snapshot(update))
    assert {name[:15] for name in directory.names()} == {"step-0000000029"}
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
