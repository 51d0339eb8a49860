"""Networks to cut, and what plain hooks see in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Forbidden(nn.Module):
    """A layer behind the cut: must never be called."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        raise AssertionError("what lies behind the cut was computed")


class Photos(nn.Module):
    """Convolutions under names of their own, and a head that must not be reached."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Conv2d(4, 6, 3, stride=2)
        self.head = head if head is not None else Forbidden()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(torch.tanh(self.body(self.stem(images))).mean((2, 3)))
        return found


def activation(network: nn.Module, layer: str, *inputs: Any) -> Any:
    """What the layer gives, seen by a hook that doesn't stop anything."""
    seen: list[Any] = []
    handle = network.get_submodule(layer).register_forward_hook(
        lambda module, arguments, output: seen.append(output)
    )
    with torch.no_grad():
        network(*inputs)
    handle.remove()
    return seen[0]
