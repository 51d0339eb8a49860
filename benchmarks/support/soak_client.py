"""A client that sends by the clock, checks all answers, and asks again if a connection breaks."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
CONNECTIONS = 64
_SECONDS = 20.0


def requests_of(rows: Array) -> list[bytes]:
    """A binary request for each row, which wants its probabilities as binary data."""
    return [_request(row[None]) for row in rows]


def _request(row: Array) -> bytes:
    about = {"name": "x", "shape": list(row.shape), "datatype": "FP32"}
    said = {
        "inputs": [{**about, "parameters": {"binary_data_size": row.nbytes}}],
        "outputs": [{"name": "probability", "parameters": {"binary_data": True}}],
    }
    header = json.dumps(said).encode()
    body = header + row.tobytes()
    return (
        b"POST /v2/models/model/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n%b" % (len(body), len(header), body)
    )


class SoakClient:
    """Sends one request after another over some connections; counts how that ends."""

    def __init__(self, port: int, rows: Array, wanted: Array, rate: float) -> None:
        self._port = port
        self._requests = requests_of(rows)
        self._wanted = wanted
        self._rate = rate
        self._due: deque[int] = deque()
        self._wake = asyncio.Event()
        self._ends = False
        self.counts: Counter[str] = Counter(
            {"right answers": 0, "answers that are wrong": 0, "requests without an answer": 0,
             "refused with 503": 0, "broken connections, asked again": 0}
        )  # fmt: skip

    async def run(self, seconds: float, disturb: Callable[[float], Awaitable[None]]) -> None:
        """Send for so long, while `disturb` is called each half second with the time."""
        begin = time.monotonic()
        tasks = [asyncio.create_task(self._send()) for _ in range(CONNECTIONS)]
        tasks.append(asyncio.create_task(self._disturb(begin, seconds, disturb)))
        random = np.random.default_rng(0)
        due, number = begin, 0
        while due < begin + seconds:
            due += random.exponential(1 / self._rate)
            if (ahead := due - time.monotonic()) > 0:
                await asyncio.sleep(ahead)
            number = (number + 1) % len(self._requests)
            self._due.append(number)
            self._wake.set()
        self._ends = True
        self._wake.set()
        await asyncio.gather(*tasks)

    async def _disturb(
        self, begin: float, seconds: float, disturb: Callable[[float], Awaitable[None]]
    ) -> None:
        while (now := time.monotonic() - begin) < seconds:
            await disturb(now)
            await asyncio.sleep(0.5)

    async def _send(self) -> None:
        reader = writer = None
        while True:
            while not self._due:
                if self._ends:
                    if writer is not None:
                        writer.close()
                    return
                self._wake.clear()
                await self._wake.wait()
            number = self._due.popleft()
            until = time.monotonic() + _SECONDS
            while True:
                try:
                    if writer is None:
                        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    writer.write(self._requests[number])
                    assert reader is not None
                    status, body = await asyncio.wait_for(_answer(reader), _SECONDS)
                except (OSError, EOFError, TimeoutError):
                    if writer is not None:
                        writer.close()
                    writer = None
                    self.counts["broken connections, asked again"] += 1
                    if time.monotonic() > until:
                        self.counts["requests without an answer"] += 1
                        break
                    continue
                self._count(number, status, body)
                break

    def _count(self, number: int, status: int, body: bytes) -> None:
        if status == 503:
            self.counts["refused with 503"] += 1
            return
        wanted = self._wanted[number]
        found = np.frombuffer(body[-wanted.nbytes :], wanted.dtype)
        good = status == 200 and np.allclose(found, wanted, 1e-4, 1e-6)
        self.counts["right answers" if good else "answers that are wrong"] += 1


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def ask_once(port: int, path: str) -> int:
    """The status of a POST without a body; 0 if the connection breaks."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        status, _ = await asyncio.wait_for(_answer(reader), 60)
        writer.close()
        return status
    except (OSError, EOFError, TimeoutError):
        return 0
