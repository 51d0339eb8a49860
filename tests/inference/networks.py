"""Networks whose class workers can import by name."""

from __future__ import annotations

import torch
from torch import nn


class Tied(nn.Module):
    """Two layers with one weight, buffers, and a part that isn't contiguous."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        whole = torch.randn(width, width)
        self.register_buffer("turned", whole.t())
        self.register_buffer("part", whole[1:3])
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("nothing", torch.zeros(0, 4))
        self.plain = torch.randn(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.second(self.first(x)) @ self.turned + self.part.sum(0) * self.count
        return found + self.plain
