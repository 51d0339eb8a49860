"""uvicorn's HTTP protocol with bounds: on the time and size of headers, and the time of bodies."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from farandole.serving.joined_writes import JoinedWrites

MOST_HEADERS = 64 << 10
"""Bytes of a request's first line and headers."""


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose ends are too slow, or send headers without an end."""

    slow = 10.0
    """Seconds for a request to come in, and for some of an answer to go out."""

    def connection_made(self, transport: Any) -> None:
        """Start the clock: a connection without a request is one that waits for headers."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._open = False  # between the first byte of a request and its last
        self._in_headers = False
        self._seen = 0
        self._clock: asyncio.TimerHandle | None = None
        self._write_clock: asyncio.TimerHandle | None = None
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_clock()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count bytes until the headers are complete; what doesn't come at once has a clock."""
        self._seen += len(data)
        super().data_received(data)
        if self._in_headers and self._seen > MOST_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large", "The headers are too large.")
        elif self._clock is None and (self._open or self._is_idle()):
            self._start_clock()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._open = self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Now comes the body."""
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Everything is there."""
        self._open = False
        self._seen = 0
        self._stop_clock()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Who reads nothing of what it asked for is left."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def _watch_writing(self, left: int) -> None:
        self._write_clock = self.loop.call_later(self.slow, self._check_writing, left)

    def _check_writing(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch_writing(left)
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        """It reads."""
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None
        super().resume_writing()

    def _is_idle(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def send_400_response(self, msg: str) -> None:
        """Say in JSON, as for all errors, that this is no HTTP."""
        self._refuse(b"400 Bad Request", "The request is no valid HTTP.")

    def _refuse(self, status: bytes, message: str) -> None:
        if self.transport.is_closing():
            return
        body = b'{"error":"%b"}' % message.encode()
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        self.transport.close()

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(self.slow, self._too_slow)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        self._clock = None
        if self._open and not self._in_headers and not self._is_idle():
            return  # whoever reads the body gives up by itself, and answers
        self._refuse(b"408 Request Timeout", "The request came too slowly.")
