"""What heartbeats and checkpoints cost: the same training with and without them, in turn.

python benchmarks/overhead.py
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import torch
from support.reporting import markdown, spread, write
from torch import nn

import farandole
from farandole.engines import LocalEngine

ROWS, FEATURES, CLASSES = 60_000, 784, 10
PAIRS, EPOCHS = 8, 75
NEVER = 24 * 3600.0
"""A heartbeat so slow that a run sees none."""


def table() -> pa.Table:
    numbers = np.random.default_rng(0)
    values = numbers.random((ROWS, FEATURES), dtype=np.float32)
    features = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), FEATURES)
    return pa.table({"features": features, "label": numbers.integers(0, CLASSES, ROWS)})


class Cost(NamedTuple):
    """Milliseconds an update."""

    wall: float
    cpu: float
    """Of all processes of the machine, which has nothing else to do."""


def train(rows: pa.Table, epochs: int, **options: Any) -> Cost:
    """Train once, from the fork server's first word to the last checkpoint on disk."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 100), nn.ReLU(), nn.Linear(100, CLASSES))
    busy = busy_seconds()
    result = farandole.train(
        network,
        rows,
        num_workers=2,
        engine=LocalEngine(threads=1),
        epochs=epochs,
        batch_size=256,
        progress=False,
        **options,
    )
    updates = len(result.steps)
    return Cost(1000 * result.seconds["train"] / updates, 1000 * (busy_seconds() - busy) / updates)


def busy_seconds() -> float:
    """Seconds that the machine's cores have worked: steadier than the clock beside neighbours."""
    times = psutil.cpu_times()
    return float(times.user + times.system)


def compare(name: str, plain: Sequence[float], safe: Sequence[float]) -> list[str]:
    """A row of the table."""
    ratios = [one / other for one, other in zip(safe, plain, strict=True)]
    medians = statistics.median(safe) / statistics.median(plain)
    return [name, spread(plain, 3), spread(safe, 3), f"{medians:.3f}", spread(ratios, 3)]


def main() -> None:
    rows = table()
    train(rows, 1)  # the fork server, and the pages of the table
    plain, safe = [], []
    for number in range(PAIRS):
        order = [False, True] if number % 2 else [True, False]
        for is_safe in order:
            if not is_safe:
                plain.append(train(rows, EPOCHS, heartbeat=NEVER))
                continue
            with tempfile.TemporaryDirectory() as folder:
                options = {"checkpoint_dir": folder, "checkpoint_minutes": 0.5, "heartbeat": 30.0}
                safe.append(train(rows, EPOCHS, **options))
    text = "\n\n".join(
        [
            "# What heartbeats and checkpoints cost",
            f"A 784–100–10 perceptron on {ROWS:,} rows, 2 local workers, batches of 256, Adam, "
            f"{EPOCHS} epochs. With: a heartbeat of 30 s and a checkpoint every 30 s, and "
            f"one at the end. Without: neither. Run in turn, {PAIRS} times; milliseconds an "
            "update, median (range). The clock's time is that of the training; the cores' time is "
            "that of the whole machine from start to end, workers, senders and driver. Single runs "
            "scatter by a fifth and more, so few pairs say nothing: four of them, beside other "
            "work, once gave a ratio of 1.22.",
            markdown(
                ["", "without", "with", "ratio of the medians", "ratio of neighbours"],
                [
                    compare("clock", [one.wall for one in plain], [one.wall for one in safe]),
                    compare("cores", [one.cpu for one in plain], [one.cpu for one in safe]),
                ],
            ),
        ]
    )
    write("overhead", {"without": plain, "with": safe, "epochs": EPOCHS}, text)


if __name__ == "__main__":
    main()
