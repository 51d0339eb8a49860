"""Writes checkpoints in a thread of its own, so that training goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from farandole.arguments import check_seconds
from farandole.checkpoint.directory import CheckpointDirectory
from farandole.checkpoint.snapshot import Snapshot
from farandole.checkpoint.store import without_password
from farandole.errors import CheckpointError


class _Request(NamedTuple):
    snapshot: Snapshot
    score: float | None


class CheckpointWriter:
    """Writes snapshots that nobody changes any more, one after the other.

    One is being written and at most one waits. A newer one takes the place of the one that waits,
    unless that has a score, and so might be the best: then `submit` waits too.

    Args:
        directory: where to write.
        timeout: seconds that `submit` and `close` wait for storage that hangs.

    >>> import tempfile, torch
    >>> directory = CheckpointDirectory(tempfile.mkdtemp())
    >>> with CheckpointWriter(directory) as writer:
    ...     writer.submit(Snapshot(10, {}, {"weight": torch.zeros(2)}))
    >>> directory.names()
    ['step-0000000010']
    """

    def __init__(self, directory: CheckpointDirectory, *, timeout: float = 600.0) -> None:
        self._directory = directory
        self._timeout = check_seconds("timeout", timeout)
        self._changed = threading.Condition()
        self._waiting: _Request | None = None
        self._busy = False
        self._error: BaseException | None = None

    def submit(self, snapshot: Snapshot, *, score: float | None = None) -> None:
        """Hand over a snapshot. Errors of earlier ones are raised by `check` and `close`."""
        with self._changed:
            self._wait(lambda: self._waiting is None or self._waiting.score is None)
            self._waiting = _Request(snapshot, score)
            if not self._busy:
                threading.Thread(target=self._run, name="checkpoints", daemon=True).start()
                self._busy = True

    def check(self) -> None:
        """Raise what went wrong since the last time, if anything did."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait until all is on disk, and raise what went wrong."""
        with self._changed:
            self._wait(lambda: not self._busy)
        self.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as own:
            if error is None:
                raise
            error.add_note(f"Besides, a checkpoint was lost: {own}")

    def _run(self) -> None:
        """Write until nothing waits; the thread ends then, and `submit` starts the next."""
        while (request := self._next()) is not None:
            try:
                self._directory.write(request.snapshot, score=request.score)
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
            del request  # its tensors, before the next is waited for

    def _next(self) -> _Request | None:
        with self._changed:
            request, self._waiting = self._waiting, None
            self._busy = request is not None
            self._changed.notify_all()
            return request

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, self._timeout):
            raise CheckpointError(
                f"A checkpoint in {without_password(self._directory.url)!r} is still being written "
                f"after {self._timeout:g} s. Is the storage slow, or out of reach?"
            )
