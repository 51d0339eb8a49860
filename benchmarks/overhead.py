"""What heartbeats and checkpoints cost: the same training with and without them, in turn.

python benchmarks/overhead.py
"""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from support.reporting import markdown, spread, write
from torch import nn

import farandole
from farandole.engines import LocalEngine

ROWS, FEATURES, CLASSES = 60_000, 784, 10
PAIRS, EPOCHS = 4, 80
NEVER = 24 * 3600.0
"""A heartbeat so slow that a run sees none."""


def table() -> pa.Table:
    numbers = np.random.default_rng(0)
    values = numbers.random((ROWS, FEATURES), dtype=np.float32)
    features = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), FEATURES)
    return pa.table({"features": features, "label": numbers.integers(0, CLASSES, ROWS)})


def train(rows: pa.Table, epochs: int, **options: Any) -> float:
    """Milliseconds an update."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 100), nn.ReLU(), nn.Linear(100, CLASSES))
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
    return 1000 * result.seconds["train"] / len(result.steps)


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
    ratios = [one / other for one, other in zip(safe, plain, strict=True)]
    text = "\n\n".join(
        [
            "# What heartbeats and checkpoints cost",
            f"A 784–100–10 perceptron on {ROWS:,} rows, 2 local workers, batches of 256, Adam, "
            f"{EPOCHS} epochs. With: a heartbeat of 30 s and a checkpoint every 30 s, and "
            f"one at the end. Without: neither. Run in turn, {PAIRS} times; milliseconds an "
            "update, median (range).",
            markdown(
                ["without", "with", "ratio of the medians", "ratio of neighbours"],
                [
                    [
                        spread(plain, 3),
                        spread(safe, 3),
                        f"{statistics.median(safe) / statistics.median(plain):.3f}",
                        spread(ratios, 3),
                    ]
                ],
            ),
        ]
    )
    write("overhead", {"without": plain, "with": safe, "epochs": EPOCHS}, text)


if __name__ == "__main__":
    main()
