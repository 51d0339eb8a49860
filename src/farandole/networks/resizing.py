"""Images of any sizes → one size: bilinear with antialiasing, as Pillow does it."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from farandole.ragged import Ragged

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
