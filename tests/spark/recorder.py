"""A network that keeps what it is given."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]


class Recorder(nn.Module):
    """Adds up all that a row has, and writes the arguments down while it learns."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        if self.training:
            handle, _ = tempfile.mkstemp(dir=self.folder, suffix=".npz")
            with os.fdopen(handle, "wb") as file:
                arrays: dict[str, Any] = {str(i): a.numpy() for i, a in enumerate(arguments)}
                np.savez(file, **arrays)
        return self.offset + torch.stack([row_sums(a) for a in arguments[1:]]).sum(0)


def row_sums(argument: torch.Tensor) -> torch.Tensor:
    return argument.reshape(len(argument), -1).float().sum(1)


def recorded(folder: Path) -> list[Array]:
    """The arguments of all batches, sorted by the first one."""
    batches = [np.load(file) for file in folder.glob("*.npz")]
    count = len(batches[0].files)
    arrays = [np.concatenate([batch[str(i)] for batch in batches]) for i in range(count)]
    order = np.argsort(arrays[0])
    return [array[order] for array in arrays]
