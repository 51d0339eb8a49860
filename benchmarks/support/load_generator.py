"""An open-loop load generator, in a process of its own: requests leave by the clock.

    python benchmarks/support/load_generator.py PORT REQUEST_FILE SECONDS RATE...

A request's time counts from when it should have left, so a server that falls behind can't hide it.
For each line on standard input, the next rate is tried, and a line of JSON printed: how many were
answered, how many failed, and the times' quantiles in ms.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from open_loop import Connection, OpenLoop

FINAL_WAIT = 1.0
"""Seconds for the last answers to come in."""
LATE = 2.0
"""Seconds that an answer counts for which didn't come."""


class LoadGenerator(OpenLoop):
    """Notes how long answers take."""

    behind = 1.0

    def __init__(self, port: int, request: bytes, rate: float, seconds: float) -> None:
        super().__init__(port, [request], rate, seconds)
        self._rate = rate
        self._count = max(1, int(rate * seconds))
        self._found: list[float] = []  # how long answers took, in seconds
        self._failed = 0

    def answered(self, connection: Connection) -> None:
        self._found.append(time.perf_counter() - connection.due)
        self._failed += not connection.text.startswith(b"HTTP/1.1 200")

    def broken(self, connection: Connection) -> None:
        """It counts as one that is missing."""

    def measured(self) -> dict[str, float]:
        """Send everything; what came of it."""
        self.run(FINAL_WAIT)
        missing = self._count - len(self._found)
        p50, p99 = np.quantile([*self._found, *[LATE] * missing], [0.5, 0.99]) * 1e3
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
