"""Single-process PyTorch with a hand-written loop, over the batches that the order prescribes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from farandole.data.order import (
    VIRTUAL_SHARDS,
    block_of,
    in_validation,
    shuffled_cuts,
    shuffled_rows,
)

Indices = np.ndarray[Any, Any]


def classification(rows: int = 203, seed: int = 0) -> pd.DataFrame:
    """Three overlapping clusters in four dimensions."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 3, rows)
    features = random.normal(size=(rows, 4)) + np.eye(4)[label] * 2
    return pd.DataFrame(
        {
            "features": list(features.astype(np.float32)),
            "label": label,
            "weight": random.uniform(0, 3, rows),
        }
    )


def classifier(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(
    rows: int, batch_size: int, epoch: int, seed: int = 0, validation: float | None = None
) -> Iterator[torch.Tensor]:
    """The global batches of one epoch over rows in blocks, as positions."""
    positions = np.arange(rows)
    shards = block_of(positions, rows)
    if validation is not None:
        positions = positions[~in_validation(positions, validation, seed)]
        shards = shards[positions]
    members = [positions[shards == shard] for shard in range(VIRTUAL_SHARDS)]
    sizes = np.array([len(member) for member in members])
    members = [
        member[shuffled_rows(len(member), seed, epoch, shard)]
        for shard, member in enumerate(members)
    ]
    used = np.zeros(VIRTUAL_SHARDS, int)
    for cut in np.concatenate(list(shuffled_cuts(sizes, batch_size, seed, epoch))):
        parts = [m[a:b] for m, a, b in zip(members, used, cut, strict=True)]
        used = cut
        yield torch.from_numpy(np.concatenate(parts))


def tensors(table: pd.DataFrame) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.stack(table["features"])), torch.from_numpy(table["label"].values)


def fit(
    network: nn.Module,
    table: pd.DataFrame,
    *,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    learning_rate: float = 0.05,
    epochs: int = 2,
    batch_size: int = 32,
    seed: int = 0,
    validation: float | None = None,
    before_step: Callable[[nn.Module], Any] = lambda network: None,
    after_step: Callable[[int, torch.optim.Optimizer], Any] = lambda step, optimizer: None,
) -> tuple[nn.Module, list[float]]:
    """Train; give the network and the loss of every step."""
    trained = copy.deepcopy(network)
    made = optimizer(trained.parameters(), lr=learning_rate)
    features, labels = tensors(table)
    losses: list[float] = []
    for epoch in range(epochs):
        for rows in batches(len(table), batch_size, epoch, seed, validation):
            made.zero_grad()
            value = loss(trained(features[rows]), labels[rows])
            value.backward()
            before_step(trained)
            made.step()
            losses.append(value.item())
            after_step(len(losses), made)
    return trained.eval(), losses


def parameters(network: nn.Module) -> np.ndarray[Any, Any]:
    return torch.cat([p.detach().reshape(-1).double() for p in network.parameters()]).numpy()
