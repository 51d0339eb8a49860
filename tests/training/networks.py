"""Losses and networks that workers import by name: apart from the tests, so that it is quick."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

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


class Backbone(nn.Module):
    """Batch normalisation and dropout in a body with statistics of its own."""

    def __init__(self, seed: int = 0, dropout: float = 0.3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 6)
            )
            self.norm = nn.BatchNorm1d(6)
            self.classifier = nn.Sequential(nn.Tanh(), nn.Linear(6, 3))
            with torch.no_grad():
                for norm in (self.body[1], self.norm):
                    norm.running_mean.normal_(0, 0.3)
                    norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.classifier(self.norm(self.body(x)))
        return found


class Named(Backbone):
    """Says itself what its head is."""

    head: ClassVar[str] = "classifier"


class Tallied(Backbone):
    """Writes down how many rows its body sees, in a file for each process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with open(self.folder / str(os.getpid()), "a") as file:
            file.write(f"{len(x)}\n")
        return super().forward(x)

    def rows(self) -> int:
        """How many there were, over all workers."""
        return sum(int(np.loadtxt(file, ndmin=1).sum()) for file in self.folder.iterdir())
