"""A server for five minutes at 80 % of the rate that it holds, with reloads and killed workers.

    .venv/bin/python benchmarks/serve_soak.py [--seconds 300] [--rate 2000]

The rate is that of `benchmarks/serve.py` (ours, binary, the MLP). Every answer is compared with
what the network itself says. A worker is killed (SIGKILL) now and then: who had a request there
sees its connection break, and asks again. The other worker lives through all of it: its memory
has to stay what it was.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from serve import NETWORKS, network
from support import reporting
from support.open_loop import CONNECTIONS
from support.soak_client import BROKEN, MISSING, WRONG, SoakClient

import farandole

NETWORK = "[784, 100, 10]"
SHARE = 0.8
WORKERS = 2
KILLS = 6
RELOADS = 20
ROWS = 50


def measured_rate() -> float:
    """What `benchmarks/serve.py` has found."""
    results = json.loads((reporting.ROOT / "benchmarks" / "results" / "serve.json").read_text())
    runs = results["ms and rates"][NETWORK]["ours, binary"]
    return statistics.median(one["best"]["rate"] if one["best"] else 50.0 for one in runs)


def start(folder: Path, errors: Any) -> tuple[subprocess.Popen[str], int]:
    command = ["serve", f"model={folder}", "--port", "0", "--workers", str(WORKERS), "--allow-load"]
    process = subprocess.Popen(
        [sys.executable, "-m", "farandole", *command], stdout=subprocess.PIPE, stderr=errors,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    found = re.search(r":(\d+)", process.stdout.readline())
    assert found, "the server didn't start"
    return process, int(found[1])


class Disturbances(threading.Thread):
    """Kills and reloads by the clock, and notes the memory of the worker that stays."""

    def __init__(self, process: subprocess.Popen[str], port: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._server = psutil.Process(process.pid)
        self._port, self._seconds = port, seconds
        workers = sorted(self._server.children(), key=lambda one: one.pid)
        self._kept = workers[0]
        first, last = 0.1 * seconds, 0.8 * seconds
        plan = [(at, self._kill) for at in np.linspace(first, last, KILLS)]
        plan += [(at, self._reload) for at in np.linspace(0.05 * seconds, 0.95 * seconds, RELOADS)]
        self._plan = sorted(plan, key=lambda one: one[0])
        self.done: Counter[str] = Counter()
        self.memory: list[tuple[float, int]] = []

    def run(self) -> None:
        """What is due, each half second."""
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < self._seconds:
            while self._plan and self._plan[0][0] <= now:
                self._plan.pop(0)[1]()
            self.memory.append((now, self._kept.memory_info().rss))
            time.sleep(0.5)

    def _kill(self) -> None:
        others = [one for one in self._server.children() if one.pid != self._kept.pid]
        if others:  # else the last one that was killed isn't back yet
            others[0].kill()
            self.done["killed workers"] += 1

    def _reload(self) -> None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            connection.request("POST", "/v2/repository/models/model/load")
            status = connection.getresponse().status
            connection.close()
        except (OSError, http.client.HTTPException):  # its worker was killed
            status = 0
        self.done["reloads" if status == 200 else f"reloads with status {status}"] += 1

    def growth(self) -> float:
        """MB that the worker has more at the end than after its first fifth."""
        seconds = self.memory[-1][0]
        early = [size for at, size in self.memory if 0.2 * seconds < at < 0.4 * seconds]
        late = [size for at, size in self.memory if at > 0.8 * seconds]
        return (statistics.median(late) - statistics.median(early)) / 2**20


def main(given: Any) -> int:
    with tempfile.TemporaryDirectory() as place, (Path(place) / "errors").open("w") as errors:
        folder = Path(place) / "net"
        shape = NETWORKS[NETWORK]
        farandole.save(network(NETWORK), folder, {"x": np.zeros((1, *shape), np.float32)})
        rows = np.random.default_rng(0).random((ROWS, *shape)).astype(np.float32)
        wanted = farandole.load(folder)({"x": rows}).probability
        process, port = start(folder, errors)
        try:
            client = SoakClient(port, rows, wanted, given.rate, given.seconds)
            disturbances = Disturbances(process, port, given.seconds)
            disturbances.start()
            client.soak()
            disturbances.join(90)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    counts = {**client.counts, **disturbances.done}
    growth = disturbances.growth()
    figures = {
        "seconds": given.seconds, "rate": given.rate, "counts": counts, "MB": growth,
        "longest answer, s": client.longest,
    }  # fmt: skip
    good = counts[WRONG] == counts[MISSING] == code == 0
    good = good and counts["reloads"] == RELOADS  # and only a killed worker breaks connections:
    good = good and counts[BROKEN] <= counts["killed workers"] * CONNECTIONS
    text = page(figures)
    if given.seconds >= 300:
        reporting.write("serve_soak", figures, text)
    else:
        print(text)
    return 0 if good and growth < 50 else 1


def page(figures: dict[str, Any]) -> str:
    rows = [[what, f"{count:,}"] for what, count in figures["counts"].items()]
    rows.append(["MB that a worker has more at the end", f"{figures['MB']:.1f}"])
    rows.append(["seconds that the slowest answer took", f"{figures['longest answer, s']:.2f}"])
    return (
        f"# A server for {figures['seconds'] / 60:g} minutes\n\n{figures['rate']:.0f} requests a "
        f"second by the clock, to {WORKERS} workers behind one port, while workers are killed and "
        "the model is loaded again.\nEach answer is compared with the network's own. A killed "
        "worker takes the requests along that it has: their senders see\ntheir connections break, "
        f"and ask again.\n\n{reporting.markdown(['', 'count'], rows)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=float, help="requests a second")
    options = parser.parse_args()
    options.rate = options.rate or SHARE * measured_rate()
    begin = time.monotonic()
    code = main(options)
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
    sys.exit(code)
