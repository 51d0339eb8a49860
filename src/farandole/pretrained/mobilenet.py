"""MobileNetV2: thin layers that widen only inside of each block, where they cost little."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from farandole.networks import initialize, seeded
from farandole.pretrained.image_network import ImageNetwork

# How much a block widens, its channels, how many such blocks follow, and the stride of the first.
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FIRST, LAST = 32, 1280


class MobileNetV2(ImageNetwork):
    """The small network for photographs, of 3.5 million weights for 1,000 classes.

    Its weights have the names and shapes of the public checkpoints (torchvision's), so that those
    load with `load_state_dict`.

    Args:
        outputs: values to predict.
        size: the height and width that images are resized to.
        fit: "crop" resizes the square in an image's middle, "squash" the whole image.
        dropout: the share of the last features that are left out in training.
        seed: for the same weights again.

    >>> MobileNetV2(outputs=5, size=64)(torch.zeros(2, 3, 48, 80)).shape
    torch.Size([2, 5])
    """

    head: ClassVar[str] = "classifier.1"

    def __init__(
        self,
        outputs: int = 1000,
        size: int = 224,
        fit: str = "crop",
        dropout: float = 0.2,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._remember_all(outputs, size, fit, dropout, seed)
        with seeded(seed):
            blocks: list[nn.Module] = [convolution(self.channels, FIRST, 3, stride=2)]
            before = FIRST
            for widening, after, count, stride in BLOCKS:
                for number in range(count):
                    step = stride if number == 0 else 1
                    blocks.append(InvertedResidual(before, after, widening, step))
                    before = after
            self.features = nn.Sequential(*blocks, convolution(before, LAST, 1))
            self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, outputs))
            initialize(self, "he", seed=seed)

    def outputs_of(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the layers to images that are prepared."""
        found: torch.Tensor = self.classifier(self.features(images).mean((2, 3)))
        return found


class InvertedResidual(nn.Module):
    """Widen, look around in each channel by itself, narrow; and add to what came in if it fits."""

    def __init__(self, before: int, after: int, widening: int, stride: int) -> None:
        super().__init__()
        wide = before * widening
        self.residual = stride == 1 and before == after
        self.conv = nn.Sequential(
            *([convolution(before, wide, 1)] if widening > 1 else []),
            convolution(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        found: torch.Tensor = self.conv(images)
        return images + found if self.residual else found

    def extra_repr(self) -> str:
        """Show what its layers don't."""
        return f"residual={self.residual}"


def convolution(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Make a convolution with its normalisation, and what cuts its values to 0 … 6.

    >>> len(convolution(3, 32, kernel=3))
    3
    """
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )
