"""JoinedWrites: headers and body of an answer in one packet, for one call to the system, not two.

So a worker that is killed between them leaves no half answer either.
"""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedWrites:
    """A transport whose writes of one turn of the event loop go out together."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        """Keep this until the end of the turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_now(self, data: bytes) -> None:
        """Write all of an answer, after what was written before."""
        self._flush()
        self._transport.write(data)

    def close(self) -> None:
        """Close, once all that was written has gone out."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))
