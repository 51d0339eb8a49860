"""Bodies in bounds: of size, before and after unpacking, and of time."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Iterator

import pytest

from farandole.serving import http_body
from farandole.serving.http_body import LARGE, ClientGone, aside, packed, read_body
from farandole.serving.refusal import Refusal

UNFINISHED = b"and so on"


def read(*parts: bytes, limit: int = 1000, **headers: str) -> bytes:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    messages: Iterator[bytes] = iter(parts)
    left = [len(parts)]

    async def receive() -> dict[str, object]:
        part = next(messages, None)
        if part is None:
            await asyncio.sleep(60)
        left[0] -= 1
        return {
            "type": "http.request",
            "body": part,
            "more_body": left[0] != 0 or part == UNFINISHED,
        }

    return asyncio.run(read_body(receive, given, limit, 0.05))


def test_parts_are_put_together() -> None:
    assert read(b"ab", b"cd", b"") == b"abcd"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_packed_bodies_are_unpacked(encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    assert read(pack(b"x" * 900), content_encoding=encoding) == b"x" * 900


def test_too_large_is_413_announced_counted_or_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    calls = [
        lambda: read(b"", content_length="1001"),
        lambda: read(b"x" * 600, b"x" * 600),
        lambda: read(b"x" * 1001),
        lambda: read(bomb, limit=20_000, content_encoding="gzip"),
    ]
    for call in calls:
        with pytest.raises(Refusal) as refused:
            call()
        assert refused.value.status == 413


@pytest.mark.parametrize(
    "body",
    [b"no gzip", gzip.compress(b"ab")[:-4], gzip.compress(b"a") + b"b"],
    ids=["no gzip", "cut off", "too long"],  # the bytes have the time in them
)
def test_damaged_gzip_is_400(body: bytes) -> None:
    with pytest.raises(Refusal, match=r"no (complete )?gzip"):
        read(body, content_encoding="gzip")


def test_other_encodings_are_415() -> None:
    with pytest.raises(Refusal) as refused:
        read(b"x", content_encoding="br")
    assert refused.value.status == 415


def test_a_body_that_stops_coming_is_408() -> None:
    with pytest.raises(Refusal) as refused:
        read(UNFINISHED)
    assert refused.value.status == 408


def test_who_goes_away_gets_no_answer() -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        asyncio.run(read_body(receive, {}, 10, 1))


def test_large_answers_are_packed_for_who_asks() -> None:
    body = b"x" * 5000
    assert gzip.decompress(packed(body, {b"accept-encoding": b"br, gzip;q=0.5"})[0]) == body
    assert zlib.decompress(packed(body, {b"accept-encoding": b"Deflate"})[0]) == body
    assert packed(body, {b"accept-encoding": b"gzip;q=0, br"}) == (body, None)
    assert packed(body, {}) == (body, None)


def test_many_bytes_are_worked_on_in_a_thread() -> None:
    async def threads() -> list[int]:
        return [await aside(size, threading.get_ident) for size in (LARGE - 1, LARGE)]

    few, many = asyncio.run(threads())
    assert few == threading.get_ident() != many


def test_large_requests_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a body is unpacked and read, the loop goes on: here it has to, for that to end."""
    read, turns = threading.Event(), []

    def slow(*_: object) -> bytes:
        assert read.wait(20), "the event loop stood still"
        return b""

    monkeypatch.setattr(http_body, "_unpacked", slow)

    async def main() -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"packed"}

        reading = asyncio.ensure_future(
            read_body(receive, {b"content-encoding": b"gzip"}, 1000, 5.0)
        )
        while not turns:
            await asyncio.sleep(0.01)
            turns.append(1)
        read.set()
        assert await reading == b""

    asyncio.run(main())
