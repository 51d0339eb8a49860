"""One driver a study: who runs it says so in its storage, and goes on saying so."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from farandole.errors import InputError

if TYPE_CHECKING:
    from optuna import Study

DRIVER = "farandole_driver"
"""A user attribute of a study: its driver's host, process and key, and how often it was written."""
_BEAT_SECONDS = 10.0
_SILENT_BEATS = 3
"""A driver that is silent for so many beats is dead."""
_POLL_SECONDS = 0.2


class StudyLock:
    """Held by the driver that runs the trials of a study that is kept.

    Optuna's journal knows nothing of who writes it. So the driver writes its mark every ten
    seconds, and takes it away at the end. A driver that finds another's mark waits for the next
    beat: if it comes, the study is taken; if not, the other one is dead. On the same host, a
    process that is no more is dead at once.

    Args:
        study: with a storage that other processes may have open too.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self.on_loss: Callable[[InputError], None] = lambda error: None
        """Is called where another driver has taken the study over."""
        self._mark: dict[str, Any] = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "key": uuid.uuid4().hex,
        }
        self._beats = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="study-lock", daemon=True)

    def __enter__(self) -> Self:
        """Raise if another driver is at it."""
        other = self._read()
        if other is not None and _is_alive(other, self._read):
            raise InputError(
                f"The study {self._study.study_name!r} is being run by process {other['process']} "
                f"on {other['host']}. Wait until that has ended, or end it; or give this study "
                "another name."
            )
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(_BEAT_SECONDS)
        with suppress(Exception):  # a storage that is gone; the mark falls silent
            if self._is_ours():
                self._study.set_user_attr(DRIVER, None)

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            # A storage that is out of reach for a moment: the trials say so if it stays away.
            with suppress(Exception):
                if not self._is_ours():
                    self.on_loss(self._loss())
                    return
                self._write()

    def _loss(self) -> InputError:
        return InputError(
            f"Another driver runs the study {self._study.study_name!r} now: this one was silent "
            "for too long, or both began at the same moment. The study has the trials that ended "
            "here, and the other driver goes on."
        )

    def _read(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._study.user_attrs.get(DRIVER)
        return found

    def _write(self) -> None:
        self._beats += 1
        self._study.set_user_attr(DRIVER, {**self._mark, "beats": self._beats})

    def _is_ours(self) -> bool:
        found = self._read()
        return found is not None and found["key"] == self._mark["key"]


def _is_alive(mark: dict[str, Any], read: Callable[[], dict[str, Any] | None]) -> bool:
    """Whether a driver still writes its mark, or another in its place."""
    if mark["host"] == socket.gethostname() and not _has_process(mark["process"]):
        return False
    end = time.monotonic() + _SILENT_BEATS * _BEAT_SECONDS
    while time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        now = read()
        if now != mark:
            return now is not None  # None: it has ended meanwhile
    return False


def _has_process(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
