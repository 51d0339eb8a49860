"""Pooling of images that are padded to a common size: each is pooled as if it were alone.

An image of odd height keeps its last line (sizes are rounded up), so even a single pixel
can be pooled.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from farandole.ragged import Ragged


def inside(values: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """True at the pixels that each image has: (images, 1, height, width).

    >>> inside(torch.zeros(1, 3, 1, 2), torch.tensor([[1, 1]])).tolist()
    [[[[True, False]]]]
    """
    return Ragged.inside(sizes, values.shape[-2:])[:, None]


def max_pool(values: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
    """Take the greatest of each 2×2 pixels.

    Args:
        values: (images, channels, height, width).
        sizes: (images, 2), the heights and widths; None if all images fill theirs.

    >>> max_pool(torch.tensor([[[[-1.0, 0.0]]]]), torch.tensor([[1, 1]])).tolist()
    [[[[-1.0]]]]
    """
    if sizes is None:
        return F.max_pool2d(values, 2, ceil_mode=True)
    bare = values.masked_fill(~inside(values, sizes), -torch.inf)
    found = F.max_pool2d(bare, 2, ceil_mode=True)
    return found.masked_fill(~inside(found, (sizes + 1) // 2), 0)


def mean_pool(values: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
    """Take the mean of each 2×2 pixels, of those that the image has; arguments as in `max_pool`.

    >>> mean_pool(torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[1, 1]])).tolist()
    [[[[3.0]]]]
    """
    if sizes is None:
        return F.avg_pool2d(values, 2, ceil_mode=True)
    sums = F.avg_pool2d(values, 2, ceil_mode=True, divisor_override=1)
    real = inside(values, sizes).to(values.dtype)
    counts = F.avg_pool2d(real, 2, ceil_mode=True, divisor_override=1)
    return sums / counts.clamp(min=1)


def mean_of_all(values: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
    """Take the mean of each channel over the whole image: (images, channels).

    An image without pixels has the mean 0; arguments as in `max_pool`.

    >>> mean_of_all(torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[1, 1]])).tolist()
    [[3.0]]
    """
    if sizes is None:
        return values.mean((2, 3))
    return values.sum((2, 3)) / sizes.prod(1).clamp(min=1)[:, None].to(values.dtype)
