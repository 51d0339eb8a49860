from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checkpoint.snapshots import same, snapshot

from farandole.checkpoint import CheckpointDirectory, CheckpointWriter, Snapshot
from farandole.errors import CheckpointError


class SlowDirectory(CheckpointDirectory):
    """Writes when it is told to."""

    def __init__(self, url: Path) -> None:
        super().__init__(url, keep_last=10)
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def write(self, snapshot: Snapshot, *, score: float | None = None) -> str:
        self.begun.release()
        assert self.go_on.acquire(timeout=60)
        return super().write(snapshot, score=score)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowDirectory]:
    directory = SlowDirectory(tmp_path)
    yield directory
    directory.go_on.release(100)


def test_all_is_on_disk_after_close(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, keep_last=10)
    writer = CheckpointWriter(directory)
    for update in range(5):
        writer.submit(snapshot(update), score=1.0)  # each might be the best
    writer.close()
    assert len(directory.names()) == 5
    assert same(directory.load(), snapshot(4))
    writer.submit(snapshot(9))  # closed only means that nothing is under way
    writer.close()
    assert same(directory.load(), snapshot(9))


def test_submit_does_not_wait(slow: SlowDirectory) -> None:
    writer = CheckpointWriter(slow)
    writer.submit(snapshot(1))
    assert slow.begun.acquire(timeout=60)
    for update in (2, 3, 4):
        writer.submit(snapshot(update))
    assert slow.names() == []
    slow.go_on.release(100)
    writer.close()
    assert slow.names() == ["step-0000000001", "step-0000000004"]


def test_what_might_be_the_best_is_not_replaced(slow: SlowDirectory) -> None:
    writer = CheckpointWriter(slow)
    writer.submit(snapshot(1))
    assert slow.begun.acquire(timeout=60)
    writer.submit(snapshot(2), score=0.1)
    third = threading.Thread(target=writer.submit, args=(snapshot(3),))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    slow.go_on.release()
    third.join(60)
    assert not third.is_alive()
    slow.go_on.release(100)
    writer.close()
    assert slow.names() == [f"step-000000000{update}" for update in (1, 2, 3)]


def test_waiting_is_bounded(slow: SlowDirectory) -> None:
    writer = CheckpointWriter(slow, timeout=0.1)
    writer.submit(snapshot(1))
    with pytest.raises(CheckpointError, match=r"still being written after 0\.1 s"):
        writer.close()
    assert slow.begun.acquire(timeout=60)
    writer.submit(snapshot(2), score=1.0)
    with pytest.raises(CheckpointError, match="still being written"):
        writer.submit(snapshot(3))


def test_errors_are_raised_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = CheckpointWriter(CheckpointDirectory(tmp_path / "file"))
    writer.check()
    writer.submit(snapshot(1))
    with pytest.raises(CheckpointError, match="Not a directory"):
        writer.close()
    writer.check()  # it was told
    (tmp_path / "file").unlink()
    writer.submit(snapshot(2))
    writer.close()
    assert (tmp_path / "file" / "latest").read_text() == "step-0000000002\n"


def test_check_raises_without_waiting(slow: SlowDirectory) -> None:
    writer = CheckpointWriter(slow)
    writer.submit(Snapshot(1, {"bad": object()}, {}))
    assert slow.begun.acquire(timeout=60)
    writer.check()
    writer.submit(snapshot(2))
    slow.go_on.release()
    assert slow.begun.acquire(timeout=60)  # of the second: the first is over
    with pytest.raises(CheckpointError, match="bad"):
        writer.check()


def test_an_error_in_the_body_still_flushes(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        CheckpointWriter(directory) as writer,
    ):
        writer.submit(snapshot(1))
        raise KeyboardInterrupt
    assert same(directory.load(), snapshot(1))


def test_the_bodys_error_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = CheckpointDirectory(tmp_path / "file")
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError) as caught,
        CheckpointWriter(directory) as writer,
    ):
        writer.submit(snapshot(1))
        raise ZeroDivisionError
    assert "a checkpoint was lost: Can't look for" in caught.value.__notes__[0]
    with pytest.raises(CheckpointError), CheckpointWriter(directory) as writer:
        writer.submit(snapshot(1))


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(3):
        with CheckpointWriter(CheckpointDirectory(tmp_path)) as writer:
            writer.submit(snapshot(1))
    for thread in threading.enumerate():
        if thread.name == "checkpoints":
            thread.join(60)
    assert threading.active_count() <= before
