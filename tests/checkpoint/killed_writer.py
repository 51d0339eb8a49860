"""Writes checkpoints and kills itself in the middle, once for each line that it is given.

A line: at which call to die, and the directory. Each line is done by a fork of this process, which
has torch loaded and one thread. What it answers is how that fork ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tests.checkpoint.snapshots import snapshot

from farandole.checkpoint import CheckpointDirectory

CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir")


class Countdown:
    """Kills this process at the n-th call that reaches the disk; a write is done by half first."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def watch(self) -> None:
        for name in CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                if name == "write":
                    real(given[0], given[1][: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)

        return counted


def main() -> None:
    for line in sys.stdin:
        calls, update, url = line.rstrip("\n").split(" ", 2)
        if (child := os.fork()) == 0:
            Countdown(int(calls)).watch()
            CheckpointDirectory(url, keep_last=1).write(snapshot(int(update)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
