"""Exchange: a request to a model and its answer, from the parser to the batcher and back.

The way through ASGI costs a task, an event, a scope and several messages for each request: more
than a small network. Small requests to models go past it. All checks are those of the other way,
and what is unusual about a request (packed, in chunks, pipelined, HTTP/1.0) goes there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from farandole.serving.answers import Answers
from farandole.serving.asked import Asked, read_asked
from farandole.serving.http_body import LARGE, ClientGone, late_body, packed
from farandole.serving.model import Model
from farandole.serving.protocol_routes import header_length, infer_reply, no_answer
from farandole.serving.reply import Reply, Request

if TYPE_CHECKING:
    from farandole.serving.app import App
    from farandole.serving.http_protocol import BoundedProtocol

_LONGEST = 300
_PATH = re.compile(
    rb"/v2/models/([A-Za-z0-9][A-Za-z0-9_.-]{0,127})(?:/versions/([1-9][0-9]{0,8}))?/infer"
)
_UNUSUAL = frozenset((b"content-encoding", b"transfer-encoding", b"upgrade"))

Route = tuple[str, str | None]
Written = tuple[Reply, bytes, bytes | None]
"""An answer, its body as its receiver would like it, and the name of that encoding."""


def direct_route(url: bytes) -> Route | None:
    """The model and version that a path asks for an answer; None for any other path.

    >>> direct_route(b"/v2/models/flowers/versions/2/infer")
    ('flowers', '2')
    >>> direct_route(b"/v2/models/..%2fsecret/infer")
    """
    return _direct_route(url) if len(url) < _LONGEST else None


@lru_cache(maxsize=1024)
def _direct_route(url: bytes) -> Route | None:
    found = _PATH.fullmatch(url)
    if found is None:
        return None
    name, version = found.groups()
    return name.decode(), None if version is None else version.decode()


def is_usual(headers: Mapping[bytes, bytes], most: int) -> bool:
    """Whether a body comes as it is, and has fewer bytes than these."""
    length = headers.get(b"content-length")
    if length is None or not length.isdigit() or len(length) > 9 or int(length) >= most:
        return False
    return _UNUSUAL.isdisjoint(headers)


class _NoEvent:
    """Where uvicorn wakes an application that reads: there is none."""

    def set(self) -> None:
        pass


class Exchange:
    """Stands where uvicorn has a cycle of request and response, and a batcher a future."""

    __slots__ = (
        "_app", "_asked", "_identity", "_model", "_protocol", "_request", "_route", "_start",
        "_timer", "disconnected", "keep_alive", "parts", "response_complete",
    )  # fmt: skip
    message_event: ClassVar[_NoEvent] = _NoEvent()

    def __init__(
        self, app: App, protocol: BoundedProtocol, route: Route, headers: Mapping[bytes, bytes]
    ) -> None:
        self._app = app
        self._protocol = protocol
        self._route = route
        self._request = Request("POST", "", headers, _nothing_more)
        self._start = perf_counter()
        self._identity = app.identity(self._request)
        self._timer: asyncio.TimerHandle | None = None
        self.parts: list[bytes] = []
        """Of the body."""
        self.keep_alive = not protocol.is_last
        self.response_complete = False
        self.disconnected = False

    def begin(self) -> None:
        """All of the request is there: ask the model, or say why not."""
        self._request.path = self._protocol.url.decode()
        try:
            self._app.check(self._request)
            self._submit(b"".join(self.parts))
        except Exception as error:
            self.set_exception(error)

    def _submit(self, body: bytes) -> None:
        batcher = self._app.repository.find(*self._route)
        self._request.metrics = batcher.metrics
        self._model: Model = batcher.model
        self._asked: Asked = read_asked(self._model, body, header_length(self._request))
        most = self._app.limits.timeout
        seconds = min(self._asked.seconds or most, most)
        batcher.put(self, self._asked.columns, self._asked.names, seconds)
        if batcher.waits:
            self._timer = self._protocol.loop.call_later(seconds, self._late, seconds)

    def _late(self, seconds: float) -> None:
        self._timer = None
        self.set_exception(no_answer(seconds))

    def too_slow(self, seconds: float) -> None:
        """The body doesn't come."""
        self.set_exception(late_body(seconds))

    def lost(self) -> None:
        """Nobody waits for the answer any more."""
        if not self.response_complete:
            self.disconnected = True
            self.set_exception(ClientGone())

    def done(self) -> bool:
        """Whether it needs no answer any more."""
        return self.response_complete

    def set_result(self, found: Answers) -> None:
        """Answer; what is large is written in a thread, so that other requests don't wait."""
        if len(found) > self._model.few_rows and found.size(self._asked.names) >= LARGE:
            written = self._protocol.loop.run_in_executor(None, self._written, found)
            written.add_done_callback(self._finish_later)
        else:
            self._finish(*self._written(found))

    def _written(self, found: Answers) -> Written:
        try:
            reply = infer_reply(self._model, self._asked, found)
        except Exception as error:
            reply = self._app.failure(error, self._identity)
        return reply, *packed(reply.body, self._request.headers)

    def _finish_later(self, written: asyncio.Future[Written]) -> None:
        if not self.response_complete:  # its sender may have gone, or its time be over
            self._finish(*written.result())

    def set_exception(self, error: Exception) -> None:
        """Answer that it can't be answered, and why."""
        reply = self._app.failure(error, self._identity)
        self._finish(reply, *packed(reply.body, self._request.headers))

    def _finish(self, reply: Reply, body: bytes, encoding: bytes | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.response_complete = True
        self._app.count(self._request, reply, perf_counter() - self._start, self._identity)
        if self.disconnected:
            return
        if reply.headers.get("connection") == "close":
            self.keep_alive = False
        head = _head(
            reply.status, self._protocol.default_lines(), reply.content_type, len(body),
            tuple(reply.headers.items()), encoding, self.keep_alive,
        )  # fmt: skip
        answer = b"".join((head, self._identity, b"\r\n\r\n", body))
        self._protocol.respond(answer, close=not self.keep_alive)


@lru_cache(maxsize=256)
def _head(
    status: int,
    default_lines: bytes,
    content_type: str,
    size: int,
    headers: tuple[tuple[str, str], ...],
    encoding: bytes | None,
    keep_alive: bool,
) -> bytes:
    """The lines before a body, up to the request's own name: for most answers, the same ones."""
    lines = [STATUS_LINE[status], default_lines, b"content-type: %b\r\n" % content_type.encode()]
    lines.append(b"content-length: %d\r\n" % size)
    lines += [b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in headers]
    if encoding is not None:
        lines.append(b"content-encoding: %b\r\n" % encoding)
    if not keep_alive and "connection" not in dict(headers):
        lines.append(b"connection: close\r\n")
    return b"".join([*lines, b"x-request-id: "])


async def _nothing_more() -> dict[str, Any]:
    return {"type": "http.disconnect"}
