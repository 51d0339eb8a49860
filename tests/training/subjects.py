"""Losses and networks that workers import by name: apart from the tests, so that it is quick."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn


class Ledger:
    """A loss that writes down the ids it sees, in a file for each process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, output: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if output.requires_grad:  # else it is the rehearsal
            with open(self.folder / str(os.getpid()), "a") as file:
                file.write("".join(f"{number}\n" for number in ids.tolist()))
        return ids.double() + 0 * output.reshape(-1)

    def read(self, epochs: int) -> Iterator[list[int]]:
        """The ids of each epoch, worker after worker."""
        files = [np.loadtxt(file, dtype=int) for file in sorted(self.folder.iterdir())]
        for epoch in range(epochs):
            yield np.concatenate([seen.reshape(epochs, -1)[epoch] for seen in files]).tolist()


class Noisy(nn.Module):
    """Statistics, randomness and a lazy layer: all that could drift apart between workers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.dropout(self.norm(self.first(x)), 0.2, self.training))


class Failing:
    """A loss that goes wrong at its tenth call."""

    calls = 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        Failing.calls += 1
        if Failing.calls == 10:
            raise ZeroDivisionError("of all things")
        return output.sum(1)
