"""Resident memory while training on more rows than may stay mapped."""

from __future__ import annotations

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole.data import shards


def test_a_large_shard_does_not_stay_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {"features": [[0.0], [1.0]], "label": [0.0, 1.0]}  # what that loads is shared too
    farandole.train(nn.Linear(1, 1), pa.table(some), loss="mse", engine="local", progress=False)
    width, limit = 784, 64 << 20
    files = psutil.Process().memory_info().shared
    rows = (files + 6 * limit) // (4 * width)  # more than may stay, whatever is loaded besides
    values = np.zeros(rows * width, np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
    table = pa.table({"features": column, "label": np.zeros(rows, np.float32)})
    monkeypatch.setattr(shards, "RESIDENT_LIMIT", files + limit)
    monkeypatch.setattr(shards, "_ROWS_AT_ONCE", 16)  # times 2 MB, if pages are that large
    seen = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(psutil.Process().memory_info().shared)
        return (output.squeeze(1) - target).square()

    farandole.train(
        nn.Linear(width, 1),
        table,
        loss=loss,
        batch_size=128,
        validation=0.2,
        engine="local",
        progress=False,
    )
    assert values.nbytes > 5 * limit
    assert max(seen) < files + 2 * limit + (16 << 20)
