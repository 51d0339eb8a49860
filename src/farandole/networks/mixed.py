"""Mixed: several ways of looking at the same image, side by side; what Inception is made of."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

Kernel: TypeAlias = tuple[int, int]
Step: TypeAlias = tuple[int, Kernel, int]
"""A convolution: its channels, kernel and stride."""

ONE = (1, 1)


class Convolution(nn.Module):
    """A convolution with its normalisation and activation."""

    def __init__(
        self, before: int, after: int, kernel: Kernel, stride: int = 1, padded: bool = True
    ) -> None:
        super().__init__()
        height, width = kernel
        padding = (height // 2, width // 2) if padded and stride == 1 else (0, 0)
        self.conv = nn.Conv2d(before, after, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(after, eps=1e-3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        return F.relu(self.bn(self.conv(images)))


class Mixed(nn.Module):
    """Branches of convolutions over the same images, and a pooling, put together by channels.

    A branch of one step has its convolution under the branch's name, one of more steps has them
    under name_1, name_2, …, and steps that stand side by side are name_2a and name_2b.

    Args:
        before: channels that come in.
        shrinks: pool by the maximum, to half the resolution; else by the mean, and keep it.
        **branches: the steps of each branch; that of the pooling, if it has steps, comes last.

    >>> mixed = Mixed(8, shrinks=False, branch1x1=[one(4)], branch_pool=[one(3)])
    >>> mixed(torch.zeros(1, 8, 9, 9)).shape
    torch.Size([1, 7, 9, 9])
    """

    def __init__(self, before: int, shrinks: bool, **branches: list[Step | list[Step]]) -> None:
        super().__init__()
        self.shrinks = shrinks
        self.branches: dict[str, list[list[str]]] = {}
        for branch, steps in branches.items():
            self.branches[branch] = self._add(branch, before, steps)

    def _add(self, branch: str, before: int, steps: list[Step | list[Step]]) -> list[list[str]]:
        """Make the convolutions of a branch; give the names of those of each step."""
        names: list[list[str]] = []
        for number, step in enumerate(steps, 1):
            name = f"{branch}_{number}" if len(steps) > 1 else branch
            beside = _named(name, step)
            for part, (after, kernel, stride) in beside.items():
                self.add_module(part, Convolution(before, after, kernel, stride))
            before = sum(after for after, _, _ in beside.values())
            names.append(list(beside))
        return names

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the branches, and put what they give together."""
        pooled = F.max_pool2d(images, 3, 2) if self.shrinks else F.avg_pool2d(images, 3, 1, 1)
        found = []
        for branch, steps in self.branches.items():
            values = pooled if branch == "branch_pool" else images
            for names in steps:
                values = torch.cat([self.get_submodule(name)(values) for name in names], 1)
            found.append(values)
        if "branch_pool" not in self.branches:
            found.append(pooled)
        return torch.cat(found, 1)


def one(channels: int) -> Step:
    """Describe a convolution of 1×1, which mixes channels only.

    >>> one(64)
    (64, (1, 1), 1)
    """
    return channels, ONE, 1


def _named(name: str, step: Step | list[Step]) -> dict[str, Step]:
    if isinstance(step, tuple):
        return {name: step}
    return {f"{name}{letter}": part for letter, part in zip("ab", step, strict=True)}
