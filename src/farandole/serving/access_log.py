"""A line of JSON for each request: when, what, how it ended. Never what it brought."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import IO

from farandole.serving.json_text import write_json
from farandole.serving.reply import Reply, Request

log = logging.getLogger("farandole.serving")
EVERY = 0.25
"""Seconds after which lines are written: a write for each would cost more than a small network."""
_LONGEST = 512


class AccessLog:
    """Writes to a file, or to standard output for "-"."""

    def __init__(self, path: str) -> None:
        self._file: IO[bytes] = (
            sys.stdout.buffer if path == "-" else open(path, "ab", buffering=0)  # noqa: SIM115
        )
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Request, reply: Reply, seconds: float, identity: bytes) -> None:
        """Note a request; an answer that nobody waited for has the status 499."""
        said = {
            "time": round(time.time(), 3),
            "request": identity.decode(),
            "method": request.method,
            "path": request.path[:_LONGEST],
            "status": reply.status,
            "ms": round(1e3 * seconds, 3),
            "bytes": len(reply.body),
        }
        self._lines.append(write_json(said) + b"\n")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self.flush)

    def flush(self) -> None:
        """Write what there is; what can't be written, on a full disk, is lost."""
        self._timer = None
        lines, self._lines = self._lines, []
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError as error:
            log.warning("%d lines of the access log are lost: %s", len(lines), error.strerror)

    def close(self) -> None:
        """Write the rest."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        if self._file is not sys.stdout.buffer:
            self._file.close()
