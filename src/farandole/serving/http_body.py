"""Bodies: read in bounds of size and time, unpacked in bounds, and packed for who asks."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar

from farandole.serving.refusal import Refusal, malformed

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Headers = Mapping[bytes, bytes]

WORTH_PACKING = 1024
"""Bytes; a smaller body doesn't get smaller enough."""
_REFUSED = re.compile(rb";q=0(\.0*)?$")
_WINDOWS = {b"gzip": 31, b"deflate": 15}


LARGE = 64 << 10
"""Bytes that are worked on in a thread, so that other requests don't wait for it."""
T = TypeVar("T")


async def aside(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """What a function gives for so many bytes: of many, in a thread."""
    return work(*arguments) if size < LARGE else await asyncio.to_thread(work, *arguments)


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def read_body(receive: Receive, headers: Headers, limit: int, seconds: float) -> bytes:
    """The body of a request, unpacked.

    Args:
        receive: ASGI's.
        headers: of the request.
        limit: how many bytes it may have, as it came and unpacked.
        seconds: how long its sender may take.
    """
    announced = headers.get(b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(seconds):
            body = await _whole(receive, limit)
    except TimeoutError:
        raise late_body(seconds) from None
    if len(body) > limit:
        raise _too_large(limit)
    encoding = headers.get(b"content-encoding")
    if encoding is None:
        return body
    return await asyncio.to_thread(_unpacked, body, encoding.lower(), limit)  # few may become many


async def _whole(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if not message.get("more_body"):
            return b"".join(parts)
        if size > limit:
            raise Refusal(413, _words(limit), {"connection": "close"})


def _unpacked(body: bytes, encoding: bytes, limit: int) -> bytes:
    if encoding == b"identity":
        return body
    if encoding not in _WINDOWS:
        raise Refusal(415, "The Content-Encoding must be gzip or deflate.")
    machine = zlib.decompressobj(_WINDOWS[encoding])
    try:
        found = machine.decompress(body, limit + 1)
    except zlib.error:
        raise malformed(f"The body is no {encoding.decode()}.") from None
    if len(found) > limit:
        raise _too_large(limit)
    if not machine.eof or machine.unused_data:
        raise malformed(f"The body is no complete {encoding.decode()}.")
    return found


def packed(body: bytes, headers: Headers) -> tuple[bytes, bytes | None]:
    """The body as its receiver would like it, and the name of that encoding.

    >>> packed(b"short", {b"accept-encoding": b"gzip"})
    (b'short', None)
    """
    accepted = headers.get(b"accept-encoding")
    if accepted is None or len(body) < WORTH_PACKING:
        return body, None
    offered = accepted.lower().replace(b" ", b"").split(b",")
    words = {word.partition(b";")[0] for word in offered if not _REFUSED.search(word)}
    for name, window in _WINDOWS.items():
        if name in words:
            machine = zlib.compressobj(1, wbits=window)
            return machine.compress(body) + machine.flush(), name
    return body, None


def late_body(seconds: float) -> Refusal:
    """What is said of a body that doesn't come."""
    return Refusal(408, f"The body didn't come within {seconds:g} s.", {"connection": "close"})


def _too_large(limit: int) -> Refusal:
    return Refusal(413, _words(limit))


def _words(limit: int) -> str:
    return f"A body can have {limit:,} bytes, unpacked too."
