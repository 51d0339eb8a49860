"""ResNet: blocks that add to what comes in, so that even a hundred layers pass a gradient on."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import nn

from farandole.arguments import as_integer, check_choice
from farandole.networks import initialize, seeded
from farandole.pretrained.image_network import ImageNetwork

# For each depth: whether blocks have a bottleneck, and how many there are at each resolution.
DEPTHS = {
    18: (False, (2, 2, 2, 2)),
    34: (False, (3, 4, 6, 3)),
    50: (True, (3, 4, 6, 3)),
    101: (True, (3, 4, 23, 3)),
    152: (True, (3, 8, 36, 3)),
}
FIRST = 64
WIDTHS = (64, 128, 256, 512)


class ResNet(ImageNetwork):
    """The residual network for photographs, of 18 to 152 layers.

    Its weights have the names and shapes of the public checkpoints (torchvision's), so that those
    load with `load_state_dict`.

    Args:
        depth: how many layers: 18, 34, 50, 101 or 152.
        outputs: values to predict.
        size: the height and width that images are resized to.
        fit: "crop" resizes the square in an image's middle, "squash" the whole image.
        dropout: the share of the last features that are left out in training.
        seed: for the same weights again.

    >>> ResNet(18, outputs=5, size=64)(torch.zeros(2, 3, 48, 80)).shape
    torch.Size([2, 5])
    """

    head: ClassVar[str] = "fc"
    depth: int

    def __init__(
        self,
        depth: int = 50,
        outputs: int = 1000,
        size: int = 224,
        fit: str = "crop",
        dropout: float = 0.0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        depth = check_choice("depth", as_integer("depth", depth), DEPTHS)
        self._remember_all(outputs, size, fit, dropout, seed, depth=depth)
        bottleneck, counts = DEPTHS[depth]
        grown = [FIRST, *(width * (4 if bottleneck else 1) for width in WIDTHS)]
        with seeded(seed):
            self.conv1 = nn.Conv2d(self.channels, FIRST, 7, 2, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(FIRST)
            self.relu = nn.ReLU()
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            self.layer1, self.layer2, self.layer3, self.layer4 = (
                residual_layer(before, width, after, count, stride, bottleneck)
                for (before, after), width, count, stride in zip(
                    pairwise(grown), WIDTHS, counts, (1, 2, 2, 2), strict=True
                )
            )
            self.dropout_layer = nn.Dropout(dropout)
            self.fc = nn.Linear(grown[-1], outputs)
            initialize(self, "he", seed=seed)

    def outputs_of(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the layers to images that are prepared."""
        values = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        values = self.layer4(self.layer3(self.layer2(self.layer1(values))))
        found: torch.Tensor = self.fc(self.dropout_layer(values.mean((2, 3))))
        return found


def residual_layer(
    before: int, width: int, after: int, count: int, stride: int, bottleneck: bool
) -> nn.Sequential:
    """Make blocks that work at the same resolution; the first of them brings it there.

    >>> len(residual_layer(64, 128, 128, count=2, stride=2, bottleneck=False))
    2
    """
    kind = Bottleneck if bottleneck else Block
    first = kind(before, width, after, stride)
    return nn.Sequential(first, *(kind(after, width, after, 1) for _ in range(count - 1)))


class Block(nn.Module):
    """Two convolutions of 3×3, added to what came in."""

    def __init__(self, before: int, width: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.downsample = shortcut(before, after, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        values = self.relu(self.bn1(self.conv1(images)))
        values = self.bn2(self.conv2(values))
        found: torch.Tensor = self.relu(values + _straight(self.downsample, images))
        return found


class Bottleneck(nn.Module):
    """Narrow by 1×1, look around by 3×3, widen by 1×1; added to what came in."""

    def __init__(self, before: int, width: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.downsample = shortcut(before, after, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        values = self.relu(self.bn1(self.conv1(images)))
        values = self.relu(self.bn2(self.conv2(values)))
        values = self.bn3(self.conv3(values))
        found: torch.Tensor = self.relu(values + _straight(self.downsample, images))
        return found


def shortcut(before: int, after: int, stride: int) -> nn.Sequential | None:
    """Make what gives an image the shape that a block gives it; None if it has that already.

    >>> shortcut(64, 64, stride=1) is None
    True
    """
    if before == after and stride == 1:
        return None
    return nn.Sequential(
        nn.Conv2d(before, after, 1, stride, bias=False),
        nn.BatchNorm2d(after),
    )


def _straight(downsample: nn.Module | None, images: torch.Tensor) -> torch.Tensor:
    return images if downsample is None else downsample(images)
