"""InceptionV3: blocks of many ways to look, for objects of three sizes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from farandole.networks.image_network import ImageNetwork
from farandole.networks.initialization import initialize, seeded
from farandole.networks.mixed import ONE, Convolution, Mixed, Step, one

THREE, FIVE = (3, 3), (5, 5)
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


def small_objects(before: int, pooled: int) -> Mixed:
    """Make a block for the finest of three resolutions."""
    return Mixed(
        before,
        shrinks=False,
        branch1x1=[one(64)],
        branch5x5=[one(48), (64, FIVE, 1)],
        branch3x3dbl=[one(64), (96, THREE, 1), (96, THREE, 1)],
        branch_pool=[one(pooled)],
    )


def first_reduction(before: int) -> Mixed:
    """Make the block that leads from the finest resolution to the middle one."""
    return Mixed(
        before,
        shrinks=True,
        branch3x3=[(384, THREE, 2)],
        branch3x3dbl=[one(64), (96, THREE, 1), (96, THREE, 2)],
    )


def middle_objects(before: int, width: int) -> Mixed:
    """Make a block for the middle resolution: 7×7 as a row and a column, a seventh of the work."""
    row, column = (width, ROW, 1), (width, COLUMN, 1)
    return Mixed(
        before,
        shrinks=False,
        branch1x1=[one(192)],
        branch7x7=[one(width), row, (192, COLUMN, 1)],
        branch7x7dbl=[one(width), column, row, column, (192, ROW, 1)],
        branch_pool=[one(192)],
    )


def second_reduction(before: int) -> Mixed:
    """Make the block that leads from the middle resolution to the coarsest."""
    return Mixed(
        before,
        shrinks=True,
        branch3x3=[one(192), (320, THREE, 2)],
        branch7x7x3=[one(192), (192, ROW, 1), (192, COLUMN, 1), (192, THREE, 2)],
    )


def large_objects(before: int) -> Mixed:
    """Make a block for the coarsest resolution, wide rather than deep."""
    beside: list[Step] = [(384, SHORT_ROW, 1), (384, SHORT_COLUMN, 1)]
    return Mixed(
        before,
        shrinks=False,
        branch1x1=[one(320)],
        branch3x3=[one(384), beside],
        branch3x3dbl=[one(448), (384, THREE, 1), beside],
        branch_pool=[one(192)],
    )
