"""InceptionV3: blocks of parallel branches of convolutions, at three resolutions."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from farandole.networks import initialize, seeded
from farandole.pretrained.image_network import ImageNetwork

Kernel: TypeAlias = tuple[int, int]
Step: TypeAlias = tuple[int, Kernel, int]
"""A convolution: its channels, kernel and stride."""

ONE, THREE, FIVE = (1, 1), (3, 3), (5, 5)
ROW, COLUMN = (1, 7), (7, 1)
SHORT_ROW, SHORT_COLUMN = (1, 3), (3, 1)


class InceptionV3(ImageNetwork):
    """The inception network for photographs, of 24 million weights for 1,000 classes.

    Its weights have the names and shapes of the public checkpoints (torchvision's), so that those
    load with `load_state_dict`. The auxiliary classifier, which had a part in their training only,
    is left out, and so are its weights in a checkpoint.

    Args:
        outputs: values to predict.
        size: the height and width that images are resized to.
        fit: "crop" resizes the square in an image's middle, "squash" the whole image.
        dropout: the share of the last features that are left out in training.
        seed: for the same weights again.

    >>> InceptionV3(outputs=5, size=128)(torch.zeros(2, 3, 48, 80)).shape
    torch.Size([2, 5])
    """

    mean: ClassVar[tuple[float, float, float]] = (0.5, 0.5, 0.5)
    deviation: ClassVar[tuple[float, float, float]] = (0.5, 0.5, 0.5)
    smallest: ClassVar[int] = 107
    head: ClassVar[str] = "fc"

    def __init__(
        self,
        outputs: int = 1000,
        size: int = 299,
        fit: str = "crop",
        dropout: float = 0.5,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._remember_all(outputs, size, fit, dropout, seed)
        with seeded(seed):
            self.Conv2d_1a_3x3 = Convolution(self.channels, 32, THREE, stride=2)
            self.Conv2d_2a_3x3 = Convolution(32, 32, THREE, padded=False)
            self.Conv2d_2b_3x3 = Convolution(32, 64, THREE)
            self.Conv2d_3b_1x1 = Convolution(64, 80, ONE)
            self.Conv2d_4a_3x3 = Convolution(80, 192, THREE, padded=False)
            self.Mixed_5b = small_objects(192, pooled=32)
            self.Mixed_5c = small_objects(256, pooled=64)
            self.Mixed_5d = small_objects(288, pooled=64)
            self.Mixed_6a = first_reduction(288)
            self.Mixed_6b = middle_objects(768, width=128)
            self.Mixed_6c = middle_objects(768, width=160)
            self.Mixed_6d = middle_objects(768, width=160)
            self.Mixed_6e = middle_objects(768, width=192)
            self.Mixed_7a = second_reduction(768)
            self.Mixed_7b = large_objects(1280)
            self.Mixed_7c = large_objects(2048)
            self.dropout_layer = nn.Dropout(dropout)
            self.fc = nn.Linear(2048, outputs)
            initialize(self, "he", seed=seed)

    def outputs_of(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the layers to images that are prepared."""
        values = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images)))
        values = self.Conv2d_3b_1x1(F.max_pool2d(values, 3, 2))
        values = F.max_pool2d(self.Conv2d_4a_3x3(values), 3, 2)
        values = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(values)))
        values = self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(values)))
        values = self.Mixed_6e(self.Mixed_6d(values))
        values = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(values)))
        found: torch.Tensor = self.fc(self.dropout_layer(values.mean((2, 3))))
        return found

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        for key in [key for key in state_dict if key.startswith(f"{prefix}AuxLogits.")]:
            del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *others)


def small_objects(before: int, pooled: int) -> InceptionBlock:
    """Make a block for the finest of three resolutions."""
    return InceptionBlock(
        before,
        shrinks=False,
        branch1x1=[conv1x1(64)],
        branch5x5=[conv1x1(48), (64, FIVE, 1)],
        branch3x3dbl=[conv1x1(64), (96, THREE, 1), (96, THREE, 1)],
        branch_pool=[conv1x1(pooled)],
    )


def first_reduction(before: int) -> InceptionBlock:
    """Make the block that leads from the finest resolution to the middle one."""
    return InceptionBlock(
        before,
        shrinks=True,
        branch3x3=[(384, THREE, 2)],
        branch3x3dbl=[conv1x1(64), (96, THREE, 1), (96, THREE, 2)],
    )


def middle_objects(before: int, width: int) -> InceptionBlock:
    """Make a block for the middle resolution: 7×7 as a row and a column, a seventh of the work."""
    row, column = (width, ROW, 1), (width, COLUMN, 1)
    return InceptionBlock(
        before,
        shrinks=False,
        branch1x1=[conv1x1(192)],
        branch7x7=[conv1x1(width), row, (192, COLUMN, 1)],
        branch7x7dbl=[conv1x1(width), column, row, column, (192, ROW, 1)],
        branch_pool=[conv1x1(192)],
    )


def second_reduction(before: int) -> InceptionBlock:
    """Make the block that leads from the middle resolution to the coarsest."""
    return InceptionBlock(
        before,
        shrinks=True,
        branch3x3=[conv1x1(192), (320, THREE, 2)],
        branch7x7x3=[conv1x1(192), (192, ROW, 1), (192, COLUMN, 1), (192, THREE, 2)],
    )


def large_objects(before: int) -> InceptionBlock:
    """Make a block for the coarsest resolution, wide rather than deep."""
    beside: list[Step] = [(384, SHORT_ROW, 1), (384, SHORT_COLUMN, 1)]
    return InceptionBlock(
        before,
        shrinks=False,
        branch1x1=[conv1x1(320)],
        branch3x3=[conv1x1(384), beside],
        branch3x3dbl=[conv1x1(448), (384, THREE, 1), beside],
        branch_pool=[conv1x1(192)],
    )


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


class InceptionBlock(nn.Module):
    """Branches of convolutions over the same images, and a pooling, put together by channels.

    A branch of one step has its convolution under the branch's name, one of more steps has them
    under name_1, name_2, …, and steps that stand side by side are name_2a and name_2b.

    Args:
        before: channels that come in.
        shrinks: pool by the maximum, to half the resolution; else by the mean, and keep it.
        **branches: the steps of each branch; that of the pooling, if it has steps, comes last.

    >>> block = InceptionBlock(8, shrinks=False, branch1x1=[conv1x1(4)], branch_pool=[conv1x1(3)])
    >>> block(torch.zeros(1, 8, 9, 9)).shape
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


def conv1x1(channels: int) -> Step:
    """Describe a convolution of 1×1, which mixes channels only.

    >>> conv1x1(64)
    (64, (1, 1), 1)
    """
    return channels, ONE, 1


def _named(name: str, step: Step | list[Step]) -> dict[str, Step]:
    if isinstance(step, tuple):
        return {name: step}
    return {f"{name}{letter}": part for letter, part in zip("ab", step, strict=True)}
