"""What the networks for photographs share: pixels of any size in, one number a class out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from farandole.arguments import as_fraction, as_integer, as_seed, check_choice
from farandole.errors import InputError
from farandole.networks import Network, flat_values, pixel_scale
from farandole.ragged import Ragged


class ImageNetwork(Network):
    """A network that resizes and normalises images itself, each as if it were alone.

    One that derives from it says what becomes of (images, 3, size, size) in `outputs_of`.
    """

    ragged_axes: ClassVar[tuple[int, ...]] = (2,)
    """How many axes of each argument's rows may vary: height and width."""
    channels: ClassVar[int] = 3
    mean: ClassVar[tuple[float, float, float]] = (0.485, 0.456, 0.406)
    """What is taken from red, green and blue of 0 … 1, …"""
    deviation: ClassVar[tuple[float, float, float]] = (0.229, 0.224, 0.225)
    """… and what they are then divided by."""
    smallest: ClassVar[int] = 33
    """The least `size`: below it the last layers see one pixel, which alone has no statistics."""
    head: ClassVar[str]
    """The name of the last layer, the only one that knows the classes."""

    outputs: int
    size: int
    fit: str
    dropout: float
    seed: int | None

    def _remember_all(
        self, outputs: int, size: int, fit: str, dropout: float, seed: int | None, **others: Any
    ) -> None:
        self._remember(
            outputs=as_integer("outputs", outputs),
            size=as_integer("size", size, self.smallest),
            fit=check_choice("fit", fit, FITS),
            dropout=as_fraction("dropout", dropout),
            seed=as_seed(seed),
            **others,
        )

    def forward(self, images: Ragged | torch.Tensor) -> torch.Tensor:
        """Apply the network.

        Args:
            images: Ragged rows of (height, width, 3), or a tensor of (images, 3, height, width):
                integers of 0 … 255, or others of 0 … 1. They are resized and normalised here.
        """
        return self.outputs_of(self.prepared(images))

    def outputs_of(self, images: torch.Tensor) -> torch.Tensor:
        """Apply the layers to images that are prepared."""
        raise NotImplementedError

    def prepared(self, images: Ragged | torch.Tensor) -> torch.Tensor:
        """Turn images into what the layers take: (images, 3, size, size), normalised."""
        kind = next(self.parameters()).dtype
        if isinstance(images, Ragged):
            flat = flat_values(images, self.channels, axes=2)
            self._check(flat is not None, images.values.shape[1:])
            assert flat is not None
            scale = pixel_scale(flat)
            values = resized_rows(Ragged(_resizable(flat), images.sizes), self.size, self.fit)
        else:
            self._check(images.dim() == 4 and images.shape[1] == self.channels, images.shape[1:])
            scale = pixel_scale(images)
            values = resized(_resizable(images), self.size, self.fit)
        shares = values.to(kind) / scale
        mean, deviation = (shares.new_tensor(v)[:, None, None] for v in (self.mean, self.deviation))
        # A pixel's colors side by side in memory: up to a fifth faster on a CPU.
        return ((shares - mean) / deviation).contiguous(memory_format=torch.channels_last)

    def _check(self, fits: bool, received: Sequence[int]) -> None:
        if not fits:
            raise InputError(
                "The network takes Ragged images of (height, width, 3), or a tensor of (images, 3, "
                f"height, width). Received: pixels or images of shape {tuple(received)}"
            )


def _resizable(values: torch.Tensor) -> torch.Tensor:
    """Bytes, or numbers of at least single precision: torch resizes no others."""
    fine = values.dtype in (torch.uint8, torch.float32, torch.float64)
    return values if fine else values.float()


FITS = {
    "crop": "the largest square in the middle: keeps proportions, loses the edges",
    "squash": "the whole image: keeps the edges, loses proportions",
}
"""What of an image is resized to a square."""


def resized(images: torch.Tensor, size: int, fit: str = "crop") -> torch.Tensor:
    """Resize images of equal size to squares. Bytes stay bytes on a CPU, which is much faster.

    Args:
        images: (images, channels, height, width).
        size: height and width of the squares.
        fit: one of `FITS`.

    >>> resized(torch.zeros(2, 3, 40, 60), size=20).shape
    torch.Size([2, 3, 20, 20])
    """
    if fit == "crop":
        images = _middle(images)
    if images.shape[2:] == (size, size):
        return images
    if 0 in images.shape:  # no images, or none with a pixel: those are black
        return images.new_zeros(*images.shape[:2], size, size)
    if images.dtype == torch.uint8 and images.device.type != "cpu":
        return _bilinear(images.float(), size).round().to(torch.uint8)
    return _bilinear(images, size)


def resized_rows(images: Ragged, size: int, fit: str = "crop") -> torch.Tensor:
    """Resize rows of (height, width, channels); those of equal size go together.

    >>> images = Ragged.of([torch.zeros(40, 60, 3), torch.zeros(9, 9, 3)], axes=2)
    >>> resized_rows(images, size=20).shape
    torch.Size([2, 3, 20, 20])
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for row, (height, width) in enumerate(images.sizes.tolist()):
        groups.setdefault((height, width), []).append(row)
    pixels = images.values.split(images.lengths.tolist())
    channels = images.values.shape[1]
    found = images.values.new_empty(len(images), channels, size, size)
    for (height, width), rows in groups.items():
        alike = torch.stack([pixels[row] for row in rows])
        alike = alike.view(len(rows), height, width, channels).permute(0, 3, 1, 2)
        found[rows] = resized(alike, size, fit)
    return found


def _middle(images: torch.Tensor) -> torch.Tensor:
    height, width = images.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return images[:, :, top : top + side, left : left + side]


def _bilinear(images: torch.Tensor, size: int) -> torch.Tensor:
    return F.interpolate(images, (size, size), mode="bilinear", antialias=True)
