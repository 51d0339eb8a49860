"""Who reads its answer slowly gets all of it; who reads nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
from farandole.serving.http_protocol import BoundedProtocol  # noqa: E402

SIZE = 30_000_000  # more than the system keeps for a connection


async def large_answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * SIZE})


class Protocol(BoundedProtocol):
    slow = 0.6


def received(address: tuple[str, int], *, first_pause: float, pause: float) -> int:
    """How many bytes a client gets that has so much time."""
    found = 0
    with socket.socket() as client, contextlib.suppress(ConnectionError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.settimeout(20)
        client.connect(address)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(first_pause)
        step = SIZE // 20
        while part := client.recv(65536):
            if (found + len(part)) // step > found // step:
                time.sleep(pause)
            found += len(part)
    return found


async def serve_one(first_pause: float, pause: float) -> int:
    config = uvicorn.Config(large_answer, lifespan="off", log_config=None)
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        address = server.sockets[0].getsockname()
        return await asyncio.to_thread(received, address, first_pause=first_pause, pause=pause)


def test_who_reads_slowly_gets_all() -> None:
    assert asyncio.run(serve_one(0.0, 0.1)) > SIZE  # in 2 s, more than the patience with silence


def test_who_reads_nothing_is_left() -> None:
    assert asyncio.run(serve_one(2.0, 0.0)) < SIZE
