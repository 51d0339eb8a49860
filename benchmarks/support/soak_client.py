"""A client that sends by the clock, checks all answers, and asks again if a connection breaks."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import numpy as np

from .open_loop import Connection, OpenLoop

Array = np.ndarray[Any, Any]
FINAL_WAIT = 20.0
"""Seconds after which a request has no answer."""
RIGHT, WRONG = "right answers", "answers that are wrong"
MISSING, REFUSED = "requests without an answer", "refused with 503"
BROKEN = "broken connections, asked again"


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


class SoakClient(OpenLoop):
    """Compares each answer with the one that is wanted; counts how requests end."""

    def __init__(self, port: int, rows: Array, wanted: Array, rate: float, seconds: float) -> None:
        super().__init__(port, requests_of(rows), rate, seconds)
        self._wanted = wanted
        # By row: the bytes of answers that were right. Rounding depends on the batch.
        self._right: list[set[bytes]] = [set() for _ in rows]
        kinds = (RIGHT, WRONG, MISSING, REFUSED, BROKEN)
        self.counts: Counter[str] = Counter(dict.fromkeys(kinds, 0))
        self.longest = 0.0
        """The longest that an answer took, in seconds."""

    def soak(self) -> None:
        """Send everything, and wait for the answers."""
        sent = self.run(FINAL_WAIT)
        ended = sum(self.counts[one] for one in (RIGHT, WRONG, REFUSED))
        self.counts[MISSING] = sent - ended

    def answered(self, connection: Connection) -> None:
        self.counts[self._kind(connection)] += 1
        self.longest = max(self.longest, time.perf_counter() - connection.due)

    def _kind(self, connection: Connection) -> str:
        text, number = connection.text, connection.number
        if not text.startswith(b"HTTP/1.1 200"):
            return REFUSED if text.startswith(b"HTTP/1.1 503") else WRONG
        wanted, known = self._wanted[number], self._right[number]
        values = text[-wanted.nbytes :]
        if values not in known:
            if not np.allclose(np.frombuffer(values, wanted.dtype), wanted, 1e-4, 1e-6):
                return WRONG
            known.add(values)
        return RIGHT

    def broken(self, connection: Connection) -> None:
        self.counts[BROKEN] += 1
        self.ask_again(connection)
