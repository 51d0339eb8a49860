"""uvicorn's HTTP protocol with bounds: on the time and size of headers, and the time of bodies."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from farandole.serving.exchange import Exchange, direct_route, is_usual
from farandole.serving.http_body import LARGE
from farandole.serving.joined_writes import JoinedWrites

if TYPE_CHECKING:
    from farandole.serving.app import App

MOST_HEADERS = 64 << 10
"""Bytes of a request's first line and headers, and of what follows the last chunk of a body."""


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose ends are too slow, or send headers without an end."""

    slow = 10.0
    """Seconds for a request to come in, and for some of an answer to go out."""
    direct: App | None = None
    """Answers small requests to models without ASGI in between; None: nobody."""
    _default_lines: tuple[Any, bytes] = (None, b"")

    def connection_made(self, transport: Any) -> None:
        """Start the clock: a connection without a request is one that waits for headers."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._open = False  # between the first byte of a request and its last
        self._in_headers = False
        self._seen = 0
        self._most: float = math.inf  # bytes that may be seen now
        self.is_last = False  # the request that comes in now, on its connection
        self._clock: asyncio.TimerHandle | None = None
        self._write_clock: asyncio.TimerHandle | None = None
        self._exchange: Exchange | None = None  # that isn't answered yet
        self._receiving: Exchange | None = None  # whose body comes in
        self._idle_since = 0.0
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_clock()
        self.resume_writing()
        if self._exchange is not None:
            self._exchange.lost()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count bytes until the headers are complete; what doesn't come at once has a clock."""
        self._seen += len(data)
        super().data_received(data)
        if self._seen > self._most:
            self._refuse(b"431 Request Header Fields Too Large", "The headers are too large.")
        elif self._clock is None and (self._open or (self._seen and self._is_idle())):
            self._start_clock()

    def on_message_begin(self) -> None:
        """A request begins; what ASGI says of it is made when it is known to go there."""
        self._open = self._in_headers = True
        self._most = MOST_HEADERS
        self.url, self.headers = b"", []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what follows a body is none, since headers were checked and used by then."""
        if self._in_headers:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Now comes the body."""
        self._in_headers = False
        self._most = math.inf
        self._receiving = self._new_exchange()
        if self._receiving is not None:
            self._exchange = self._receiving
            self.cycle = self._receiving  # type: ignore[assignment]
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()
        if self.is_last:
            self.cycle.keep_alive = False

    def _new_exchange(self) -> Exchange | None:
        """For a usual request to a model on a connection that waits for nothing else."""
        if self.direct is None or (route := direct_route(self.url)) is None:
            return None
        parser = self.parser
        if route[0] in self.direct.repository.image_models:
            return None
        if not self._is_idle() or self.expect_100_continue or self.flow.write_paused:
            return None
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
            return None
        headers = dict(self.headers)
        most = min(LARGE, self.direct.limits.max_body + 1)
        if not parser.should_keep_alive() or not is_usual(headers, most):
            return None
        return Exchange(self.direct, self, route, headers)

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        if self._receiving is not None:
            self._receiving.parts.append(body)
        else:
            self._most = math.inf
            super().on_body(body)

    def on_chunk_header(self) -> None:
        """Some of the body comes next; after the last chunk, something that nobody counts."""
        self._seen = 0
        self._most = MOST_HEADERS

    def on_message_complete(self) -> None:
        """Everything is there."""
        self._open = False
        self._seen = 0
        self._stop_clock()
        if self._receiving is not None:
            self._receiving.begin()
            self._receiving = None
        else:
            super().on_message_complete()

    def shutdown(self) -> None:
        """End once all is answered that has begun, be it with the first byte of its headers."""
        if self._in_headers:
            self.is_last = True
        else:
            super().shutdown()

    def respond(self, answer: bytes, *, close: bool) -> None:
        """Send all of an exchange's answer."""
        self._exchange = None
        self.transport.write_now(answer)  # type: ignore[attr-defined]
        if close:
            self.transport.close()
        self.on_response_complete()

    def default_lines(self) -> bytes:
        """The headers that uvicorn gives to all answers: the date, which changes once a second."""
        given = self.server_state.default_headers
        known, lines = BoundedProtocol._default_lines
        if known is not given:
            lines = b"".join(b"%b: %b\r\n" % pair for pair in given)
            BoundedProtocol._default_lines = (given, lines)
        return lines

    def on_response_complete(self) -> None:
        """Go on with what was sent meanwhile, or wait for more: with one clock for many times."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._watch_idleness(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        """Let the clock run: it looks by itself whether the connection was idle for so long."""

    def _watch_idleness(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which nothing has happened for long."""
        self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self._open or not self._is_idle():
            return  # its answer starts the clock again
        if left > 0.01:
            self._watch_idleness(left)
        else:
            super().timeout_keep_alive_handler()

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
        if self._receiving is not None:
            self._receiving.too_slow(self.slow)
            return
        if self._open and not self._in_headers and not self._is_idle():
            self._start_clock()  # whoever reads the body gives up by itself; who doesn't is left
            return
        self._refuse(b"408 Request Timeout", "The request came too slowly.")
