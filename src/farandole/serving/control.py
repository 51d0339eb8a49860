"""The channel between a worker and its supervisor: lines of JSON over a socket pair."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

LONGEST = 16 << 20


class Channel:
    """One end: messages out, messages in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, end: socket.socket) -> Channel:
        """A channel over one end of a socket pair."""
        return cls(*await asyncio.open_connection(sock=end, limit=LONGEST))

    def send(self, **message: Any) -> None:
        """Send a message; if nobody is there any more, its reader finds out."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other end has gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        found: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return found

    def close(self) -> None:
        """Close this end."""
        self._writer.close()
