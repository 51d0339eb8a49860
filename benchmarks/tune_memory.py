"""How much memory sixteen trials over a table of a gigabyte take, two at a time.

    .venv/bin/python benchmarks/tune_memory.py [--gigabytes 1 --trials 16]

Memory of the workers is counted by proportional share: a page that several processes map counts
once. Disk is what unnamed scratch files hold: the table itself, and a shard for each slot.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from memory import WIDTH, write_parquet
from support import reporting
from torch import nn

import farandole

SLOTS = 2


def proportional(pid: int) -> tuple[float, float]:
    """(all, anonymous) memory of a process in MB; nothing if it has gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0, 0.0
    sizes = {line.split()[0]: int(line.split()[1]) / 1e3 for line in text.splitlines()[1:]}
    return sizes.get("Pss:", 0.0), sizes.get("Pss_Anon:", 0.0)


def scratch(pids: list[int]) -> float:
    """Megabytes of deleted files that these processes map, each file counted once."""
    files: dict[tuple[str, str], float] = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].endswith("(deleted)") and "/dev/" not in fields[5]:
                first, last = (int(end, 16) for end in fields[0].split("-"))
                key = fields[3], fields[4]
                files[key] = max(files.get(key, 0.0), (last - first) / 1e6)
    return sum(files.values())


def watched(call: Any) -> tuple[Any, dict[str, float]]:
    """What a call gives, and the peaks of its processes' memory."""
    peaks = {"all": 0.0, "anonymous": 0.0, "disk": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            pids = [os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))]
            shares = [proportional(pid) for pid in pids]
            found = {
                "all": sum(share[0] for share in shares),
                "anonymous": sum(share[1] for share in shares),
                "disk": scratch(pids),
            }
            for name, value in found.items():
                peaks[name] = max(peaks[name], value)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return call(), peaks
    finally:
        done.set()
        watcher.join()


def study(path: Path, trials: int) -> Any:
    return farandole.tune(
        nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 10)),
        {"learning_rate": [10.0**-power for power in range(1, trials + 1)]},
        str(path),
        metric="train_loss",
        sampler="grid",
        features="features",
        epochs=1,
        batch_size=1024,
        parallelism=SLOTS,
        engine="local",
        progress=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--trials", type=int, default=16)
    options = parser.parse_args()
    figures: dict[str, Any] = {"gigabytes": options.gigabytes, "slots": SLOTS}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_parquet(path, options.gigabytes)
        for trials in (SLOTS, options.trials):
            start = time.perf_counter()
            found, peaks = watched(lambda trials=trials: study(path, trials))
            assert found.counts["complete"] == trials
            figures[str(trials)] = {**peaks, "seconds": time.perf_counter() - start}
            rows.append(
                [str(trials)] + [f"{peaks[name]:,.0f} MB" for name in ("all", "anonymous", "disk")]
            )
    header = ["trials", "memory, all processes", "of it not of files", "scratch files"]
    head = "# Memory of a study\n\n" + str(__doc__).split("\n\n", 2)[2]
    about = f"A table of {options.gigabytes:g} GB, {SLOTS} slots.\n\n"
    reporting.write("tune_memory", figures, head + about + reporting.markdown(header, rows))


if __name__ == "__main__":
    main()
