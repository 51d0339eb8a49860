"""An open-loop load generator, in a process of its own: requests leave by the clock.

    python benchmarks/support/load_generator.py PORT REQUEST_FILE SECONDS RATE...

A request's time counts from when it should have left, so a server that falls behind can't hide it.
For each line on standard input, the next rate is tried, and a line of JSON printed: how many were
answered, how many failed, and the times' quantiles in ms: the median of those of five windows,
since on a shared machine a stall of the whole machine comes now and then.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from open_loop import Connection, OpenLoop

WINDOWS = 5
FINAL_WAIT = 1.0
"""Seconds for the last answers to come in."""


class LoadGenerator(OpenLoop):
    """Notes how long answers take."""

    behind = 1.0

    def __init__(self, port: int, request: bytes, rate: float, seconds: float) -> None:
        super().__init__(port, [request], rate, seconds)
        self._rate = rate
        self._count = max(1, int(rate * seconds))
        self._found: list[tuple[float, float]] = []  # when it was due, how long it took
        self._failed = 0

    def answered(self, connection: Connection) -> None:
        due = connection.due
        self._found.append((due, time.perf_counter() - due))
        self._failed += not connection.text.startswith(b"HTTP/1.1 200")

    def broken(self, connection: Connection) -> None:
        """It counts as one that is missing."""

    def measured(self) -> dict[str, float]:
        """Send everything; what came of it."""
        self.run(FINAL_WAIT)
        missing = self._count - len(self._found)
        in_order = [seconds for _, seconds in sorted(self._found)] + [2.0] * missing
        windows = np.array_split(np.array(in_order) * 1e3, min(WINDOWS, self._count))
        p50, p99 = np.median([np.quantile(one, [0.5, 0.99]) for one in windows], axis=0)
        return {
            "rate": self._rate,
            "answered": len(self._found),
            "failed": self._failed + missing,
            "p50": float(p50),
            "p99": float(p99),
        }


if __name__ == "__main__":
    port, file, seconds, *rates = sys.argv[1:]
    for rate, _ in zip(rates, sys.stdin, strict=False):
        request = Path(file).read_bytes()
        generator = LoadGenerator(int(port), request, float(rate), float(seconds))
        print(json.dumps(generator.measured()), flush=True)
