"""A worker's memory while its shard grows from 0.5 to 4 GB.

    .venv/bin/python benchmarks/memory.py [--sizes 0.5 1 2 4]

Each size is a training run in a process of its own, one epoch over rows of 784 float32, read from
Parquet by the worker. What counts is the peak of resident memory: mapped pages included.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import reporting
from torch import nn

import farandole

WIDTH = 784


def write_parquet(path: Path, gigabytes: float) -> int:
    """Random rows, a row group at a time."""
    rows = int(gigabytes * 1e9 / (WIDTH * 4))
    rng = np.random.default_rng(0)
    block = rng.standard_normal((20_000, WIDTH), dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), WIDTH)
    schema = pa.schema([("features", column.type), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, len(block)):
            count = min(len(block), rows - start)
            labels = pa.array(rng.integers(0, 10, count))
            writer.write_table(pa.table([column[:count], labels], schema=schema))
    return rows


def train_and_watch(path: str) -> dict[str, float]:
    """Train on the file, and note the peaks of resident memory."""
    before = _resident()
    peaks = dict(before)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for name, value in _resident().items():
                peaks[name] = max(peaks[name], value)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    network = nn.Sequential(nn.Linear(WIDTH, 100), nn.ReLU(), nn.Linear(100, 10))
    result = farandole.train(
        network, path, features="features", batch_size=256, engine="local", progress=False
    )
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return {
        "before": before["all"],
        "peak": peaks["all"],
        "peak_files": peaks["files"],
        "seconds": seconds,
        "rows_per_second": float(result.history["rows_per_second"].iloc[-1]),
    }


def _resident() -> dict[str, float]:
    """Resident memory of this process in MB: all of it, and the part that belongs to files."""
    with open("/proc/self/statm") as statm:
        pages = [int(field) for field in statm.read().split()]
    return {"all": pages[1] * 4096 / 1e6, "files": pages[2] * 4096 / 1e6}


def main() -> None:
    """One run a size, each in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for gigabytes in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.parquet"
            rows = write_parquet(path, gigabytes)
            [found] = farandole.run(
                train_and_watch, (str(path),), num_workers=1, engine="local", timeout=1800
            )
        figures[f"{gigabytes:g}"] = {"rows": rows, **found}
        print(gigabytes, found, flush=True)
    rows_of_table = [
        [
            f"{size} GB",
            f"{found['rows']:,}",
            f"{found['peak']:,.0f} MB",
            f"{found['peak_files']:,.0f} MB",
            f"{found['rows_per_second']:,.0f}",
        ]
        for size, found in figures.items()
    ]
    header = ["shard", "rows", "peak resident memory", "of it mapped files", "training rows/s"]
    head = "# Memory of a worker\n\n" + str(__doc__).split("\n\n", 2)[2]
    text = head + "\n" + reporting.markdown(header, rows_of_table)
    reporting.write("memory", {"sizes": figures}, text)


if __name__ == "__main__":
    main()
