"""A server under load, with reloads and killed workers: no wrong answer, and memory stays flat.

For five minutes: FARANDOLE_SOAK_SECONDS=300 pytest -m soak tests/serving/test_soak_integration.py
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.serving.conftest import Server, post, read_reply, start_server, stop_server

import farandole

pytestmark = [pytest.mark.integration, pytest.mark.soak]
SECONDS = float(os.environ.get("FARANDOLE_SOAK_SECONDS", "15"))
SENDERS = 8


class Sender(threading.Thread):
    """Asks again and again, and counts how that ends."""

    def __init__(self, server: Server, wanted: np.ndarray, rows: np.ndarray, until: float) -> None:
        super().__init__()
        self._server, self._wanted, self._rows, self._until = server, wanted, rows, until
        self.right = self.wrong = self.refused = self.broken = 0

    def run(self) -> None:
        number = 0
        while time.monotonic() < self._until:
            number = (number + 1) % len(self._rows)
            said = {"name": "ids", "shape": [1, 3], "datatype": "INT64"}
            body = json.dumps({"inputs": [{**said, "data": self._rows[number].tolist()}]}).encode()
            try:
                status, answer = self._once(body)
            except OSError:
                status, answer = 0, b""
            if status == 200:
                found = json.loads(answer)["outputs"][0]["data"][0]
                good = abs(found - self._wanted[number]) < 1e-5
                self.right, self.wrong = self.right + good, self.wrong + (not good)
            elif status == 0:  # the worker that had the request was killed
                self.broken += 1
            else:
                self.refused += 1

    def _once(self, body: bytes) -> tuple[int, bytes]:
        with self._server.connect() as connection:
            request = post("/v2/models/words/infer", body)
            connection.sendall(request)
            return read_reply(connection)


def memory(server: Server) -> int:
    """Bytes that the workers have to themselves."""
    return sum(one.memory_info().rss for one in psutil.Process(server.process.pid).children())


@pytest.mark.timeout(int(SECONDS) + 240)
def test_reloads_and_killed_workers_lose_nothing_else(models: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 50, (40, 3))
    wanted = farandole.load(models / "words")({"ids": rows}).prediction
    server = start_server(tmp_path, str(models / "words"), "--workers", "2", "--allow-load")
    try:
        until = time.monotonic() + SECONDS
        senders = [Sender(server, wanted, rows, until) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        time.sleep(SECONDS / 5)
        before, kills = memory(server), 0
        while time.monotonic() < until - SECONDS / 4:
            path = "/v2/repository/models/words/load"
            assert server.send(post(path, b"", "Connection: close"))[0] in (0, 200)
            if kills < 2 and len(psutil.Process(server.process.pid).children()) == 2:
                victim = psutil.Process(server.process.pid).children()[0]
                os.kill(victim.pid, signal.SIGKILL)
                kills += 1
            time.sleep(SECONDS / 20)
        for sender in senders:
            sender.join()
        assert sum(sender.right for sender in senders) > 50
        assert sum(sender.wrong for sender in senders) == 0
        assert sum(sender.refused for sender in senders) == 0
        # A request is lost only with the worker that had it: at most one a sender and kill.
        assert sum(sender.broken for sender in senders) <= SENDERS * kills
        deadline = time.monotonic() + 60
        while len(psutil.Process(server.process.pid).children()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert memory(server) < 1.3 * before + (50 << 20)
    finally:
        assert stop_server(server) == 0
