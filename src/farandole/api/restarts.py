"""Restarts: whether workers that failed begin again. A policy decides, and `run_attempts` obeys."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from farandole.errors import (
    FarandoleError,
    NotAuthentic,
    PeerLost,
    WorkerFailed,
    WorkerLost,
    WorkerMissing,
)

T = TypeVar("T")

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_UPDATE = re.compile(r"\(in update (\d+)\)")


class RestartPolicy:
    """Decides whether to begin again after a failure.

    Workers that are lost are bad luck: they get `most` restarts, counted anew whenever there is a
    later checkpoint than at the failure before. An exception may be bad luck too, but not twice in
    the same update; and where nothing has been saved, it is shown at once.

    >>> policy = RestartPolicy(most=1)
    >>> policy.wait_before_restart(WorkerLost(1, "killed"), saved=0)
    0.5
    >>> policy.wait_before_restart(WorkerLost(0, "killed"), saved=0) is None
    True
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        """Restarts since there was progress."""
        self._saved = 0
        self._seen: set[tuple[str, str]] = set()

    def wait_before_restart(self, error: Exception, saved: int) -> float | None:
        """Seconds to wait; None to give up. `saved` is the update of the last checkpoint."""
        if saved > self._saved:
            self._saved, self.count = saved, 0
        if not (is_bad_luck(error) or self._is_new(error, saved)) or self.count >= self.most:
            return None
        self.count += 1
        return min(_FIRST_WAIT * 2.0 ** (self.count - 1), _LONGEST_WAIT)

    def _is_new(self, error: Exception, saved: int) -> bool:
        """Whether it is an exception of a worker's that wasn't seen in this update before."""
        if not isinstance(error, WorkerFailed) or saved == 0:
            return False
        found = _UPDATE.search(error.traceback)
        key = error.summary, found[1] if found else ""
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def is_bad_luck(error: Exception) -> bool:
    """Whether a worker was lost, or a stranger took its place, and all may begin again.

    >>> is_bad_luck(WorkerLost(0, "killed")), is_bad_luck(PeerLost([1])), is_bad_luck(OSError())
    (True, True, False)
    """
    return isinstance(error, WorkerLost | PeerLost | WorkerMissing | NotAuthentic)


def run_attempts(
    attempt: Callable[[], T],
    policy: RestartPolicy,
    *,
    last_saved: Callable[[], int],
    before_restart: Callable[[Exception], None],
) -> T:
    """Run attempts until one succeeds, or the policy gives up and its error is raised."""
    while True:
        try:
            return attempt()
        except Exception as error:
            try:
                saved = last_saved()
            except FarandoleError as trouble:  # the directory of checkpoints is lost as well
                error.add_note(f"(It can't go on from a checkpoint: {trouble})")
                raise error from None
            wait = policy.wait_before_restart(error, saved)
            if wait is None:
                _add_advice(error, policy.count, saved)
                raise
            failure: Exception | None = error
        assert failure is not None
        before_restart(failure)
        _forget_frames(failure)
        failure = None
        time.sleep(wait)


def _forget_frames(error: BaseException | None) -> None:
    """What the attempt held ends now, such as a data set that Ray computes, not with the next."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _add_advice(error: Exception, restarts: int, saved: int) -> None:
    """What went before, and what can be done now."""
    if restarts:
        error.add_note(f"({restarts} restarts without progress went before.)")
    if saved:
        error.add_note(
            f"(There is a checkpoint of update {saved}: the same call with the same folder goes on "
            "from it.)"
        )
