"""An open-loop load generator, in a process of its own: requests leave by the clock.

    python benchmarks/support/load_generator.py HOST PORT REQUEST_FILE SECONDS RATE...

A request's time counts from when it should have left, so a server that falls behind can't hide it.
For each line on standard input, the next rate is tried, and a line of JSON printed: how many were
answered, how many failed, and the times' quantiles in ms: the median of those of five windows,
since on a shared machine a stall of the whole machine comes now and then.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

CONNECTIONS = 64
WINDOWS = 5


def whole(head: bytes, body: bytes) -> bool:
    """Whether this is all of an answer: it has its length, or ends with an empty chunk."""
    _, known, rest = head.partition(b"content-length: ")
    return len(body) >= int(rest.split(b"\r\n")[0]) if known else body.endswith(b"0\r\n\r\n")


class Connection(asyncio.Protocol):
    """One request at a time, on one connection."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._generator.free.append(self)

    def ask(self, request: bytes, due: float) -> None:
        self._due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        if whole(head.lower(), body):
            self._buffer = b""
            self._generator.answered(self, self._due, head.split(b" ", 2)[1] == b"200")


class Generator:
    """Sends at a rate, over connections that are free."""

    def __init__(self, request: bytes, rate: float, seconds: float) -> None:
        self.free: deque[Connection] = deque()
        self._request, self._rate = request, rate
        self._count = max(1, int(rate * seconds))
        self._waiting: deque[float] = deque()
        self._times: list[tuple[float, float]] = []  # when it was due, how long it took
        self._failed = 0

    def answered(self, connection: Connection, due: float, good: bool) -> None:
        self._times.append((due, time.perf_counter() - due))
        self._failed += not good
        if self._waiting:
            connection.ask(self._request, self._waiting.popleft())
        else:
            self.free.append(connection)

    async def run(self, host: str, port: int) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        for _ in range(CONNECTIONS):
            await loop.create_connection(lambda: Connection(self), host, port)
        connections = list(self.free)
        gaps = np.random.default_rng(0).exponential(1 / self._rate, self._count)
        start = time.perf_counter() + 0.05
        for due in start + np.cumsum(gaps):
            ahead = due - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            if self.free:
                self.free.popleft().ask(self._request, due)
            else:
                self._waiting.append(due)
            if len(self._waiting) > self._rate:  # more than a second behind: it won't catch up
                break
        deadline = time.perf_counter() + 1
        while len(self._times) < self._count and time.perf_counter() < deadline:
            await asyncio.sleep(0.01)
        for one in connections:
            one.transport.abort()
        return self._summary()

    def _summary(self) -> dict[str, float]:
        missing = self._count - len(self._times)
        in_order = [seconds for _, seconds in sorted(self._times)] + [2.0] * missing
        windows = np.array_split(np.array(in_order) * 1e3, min(WINDOWS, self._count))
        p50, p99 = np.median([np.quantile(one, [0.5, 0.99]) for one in windows], axis=0)
        return {
            "rate": self._rate,
            "answered": len(self._times),
            "failed": self._failed + missing,
            "p50": float(p50),
            "p99": float(p99),
        }


if __name__ == "__main__":
    host, port, file, seconds, *rates = sys.argv[1:]
    for rate, _ in zip(rates, sys.stdin, strict=False):
        generator = Generator(Path(file).read_bytes(), float(rate), float(seconds))
        print(json.dumps(uvloop.run(generator.run(host, int(port)))), flush=True)
