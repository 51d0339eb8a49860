"""Small tables with known content, and what single-process torch makes of them."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.nn import functional as F

from farandole.world import current_world

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Array = np.ndarray[Any, Any]


def classes(rows: int = 120, seed: int = 0) -> tuple[Array, Array]:
    """Four features; the class (of three) depends on two of them."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 4)).astype(np.float32)
    return features, np.digitize(features[:, 0] - features[:, 2], [-0.7, 0.7]).astype(np.int64)


def table(rows: int = 120, seed: int = 0) -> pa.Table:
    """The columns id, features (an array) and label."""
    features, label = classes(rows, seed)
    return pa.table(
        {
            "id": np.arange(rows, dtype=np.int64),
            "features": pa.array(list(features), pa.list_(pa.float32())),
            "label": label,
        }
    )


def frame(spark: SparkSession, rows: int = 120, seed: int = 0) -> DataFrame:
    return spark.createDataFrame(table(rows, seed))


def small_network(outputs: int = 3, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def torch_losses(
    network: nn.Module, x: Array, y: Array, *, rate: float, epochs: int, batch: int
) -> tuple[list[float], nn.Module]:
    """Plain SGD in the order of the rows: the loss of every step, and the trained network."""
    network = copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    found = []
    for _ in range(epochs):
        for rows in torch.arange(len(x)).split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(torch.tensor(x)[rows]), torch.tensor(y)[rows])
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found, network


class Ledger(nn.Module):
    """Classifies, and writes down the id of each row that it learns from: a line a batch."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.layers = small_network()

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.training:
            world = current_world()
            with open(os.path.join(self.folder, f"{world.rank}-of-{world.size}"), "a") as file:
                file.write(json.dumps(ids.tolist()) + "\n")
        scores: torch.Tensor = self.layers(features)
        return scores


def ledger(folder: str | Path) -> list[list[list[int]]]:
    """What the workers wrote: [rank][batch][row]."""
    files = sorted(Path(folder).iterdir(), key=lambda file: int(file.name.split("-")[0]))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def check_epochs(pages: list[list[list[int]]], rows: int, epochs: int = 2) -> None:
    """Each row exactly once an epoch, and each epoch in an order of its own."""
    seen: list[int] = []
    for batches in pages:
        ids = [row for batch in batches for row in batch]
        assert len(ids) % epochs == 0
        share = len(ids) // epochs
        parts = [ids[i * share : (i + 1) * share] for i in range(epochs)]
        assert all(sorted(part) == sorted(parts[0]) for part in parts)
        assert share < 3 or parts[0] != parts[1]
        seen += parts[0]
    assert sorted(seen) == list(range(rows))


def check_order(pages: list[list[list[int]]], rows: int, batch: int, epochs: int = 2) -> None:
    """Each step of each epoch has the next rows, whoever works on them."""
    steps: dict[int, list[int]] = {}
    for batches in pages:
        for ids in batches:
            assert ids == sorted(ids)
            steps.setdefault(ids[0] // batch, []).extend(ids)
    assert sorted(steps) == list(range(-(-rows // batch)))
    for step, ids in steps.items():
        window = range(step * batch, min(rows, (step + 1) * batch))
        assert sorted(ids) == sorted([*window] * epochs)
