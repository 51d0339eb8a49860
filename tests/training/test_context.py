"""How many rows go through a network at once, where no recipe says so."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole.ragged import Ragged


def train(network: nn.Module, data: pa.Table, **options: Any) -> None:
    farandole.train(network, data, features="features", progress=False, **options)


class Padded(nn.Module):
    """The mean of a row, as a network that fills up: notes how much that would be."""

    ragged_axes = (1,)
    seen: ClassVar[dict[bool, list[tuple[int, int]]]] = {True: [], False: []}

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, x: Ragged) -> torch.Tensor:
        self.seen[torch.is_grad_enabled()].append((len(x), int(x.lengths.max())))
        means = torch.zeros(len(x)).index_add(0, x.owners, x.values) / x.lengths
        found: torch.Tensor = self.layer(means.unsqueeze(1))
        return found


@pytest.mark.parametrize("optimizer", ["lbfgs", "sgd"])
def test_one_long_row_among_many(optimizer: str) -> None:
    lengths = np.where(np.arange(2200) % 1100 == 500, 2_000_000, 2)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    column = pa.LargeListArray.from_arrays(ends, np.ones(ends[-1], np.float32))
    data = pa.table(
        {
            "features": column,
            "label": np.arange(2200) % 3,
            "held": np.arange(2200) >= 1100,
        }
    )
    for calls in Padded.seen.values():
        calls.clear()
    train(Padded(), data, optimizer=optimizer, epochs=1, validation="held")
    for learning in (True, False) if optimizer == "lbfgs" else (False,):
        calls = Padded.seen[learning]
        assert max(longest for _, longest in calls) == 2_000_000
        assert max(count for count, _ in calls) > 400, "short rows still go together"
        assert max(count * longest for count, longest in calls if longest > 2) <= 1 << 22


@pytest.mark.parametrize(("width", "expected"), [(784, [1024, 176]), (1 << 14, [256] * 4 + [176])])
def test_large_rows_go_through_the_network_a_few_at_a_time(width: int, expected: list[int]) -> None:
    counts: list[int] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if output.requires_grad:
            counts.append(len(output))
        return (output.squeeze(1) - target).square()

    values = pa.array(np.zeros(1200 * width, np.uint8))
    column = pa.FixedSizeListArray.from_arrays(values, width)
    data = pa.table({"features": column, "label": np.zeros(1200, np.float32)})
    train(nn.Linear(width, 1), data, optimizer="lbfgs", epochs=0, loss=loss)
    assert counts == expected


class Enlarging(nn.Module):
    """Makes a megabyte of each small row, as a network for photos does; notes how many come."""

    rows: ClassVar[dict[bool, list[int]]] = {True: [], False: []}

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(1, 1 << 18), nn.Linear(1 << 18, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows[torch.is_grad_enabled()].append(len(x))
        found: torch.Tensor = self.narrow(self.wide(x.reshape(-1, 1)))
        return found


@pytest.mark.parametrize("optimizer", ["lbfgs", "sgd"])
def test_rows_that_a_network_enlarges_go_through_it_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    monkeypatch.setattr("farandole.networks.batch_sizing._BYTES", 40 << 20)
    numbers = np.arange(120)
    data = pa.table(
        {"features": numbers.astype(np.float32), "label": numbers * 0.1, "held": numbers >= 60}
    )
    for calls in Enlarging.rows.values():
        calls.clear()
    options: dict[str, Any] = {"epochs": 1, "validation": "held", "loss": "mse"}
    if optimizer == "sgd":
        options |= {"batch_size": 4, "learning_rate": 1e-12}
    train(Enlarging(), data, optimizer=optimizer, **options)
    assert 16 <= max(Enlarging.rows[False]) <= 20  # of twice a megabyte each
    assert max(Enlarging.rows[True]) <= 20
