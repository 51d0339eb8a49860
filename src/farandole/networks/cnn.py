"""CNN: convolutions over images of any size, each as if it were alone in its batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from farandole.arguments import (
    as_fraction,
    as_integer,
    as_integers,
    as_seed,
    check_choice,
    check_flag,
)
from farandole.errors import InputError
from farandole.networks.activations import ActivationLike
from farandole.networks.initialization import initialize, seeded
from farandole.networks.network import (
    Network,
    activation_layer,
    flat_values,
    layer_dtype,
    normalised,
    pixel_scale,
)
from farandole.ragged import Ragged


class CNN(Network):
    """Convolutions, each followed by 2×2 pooling, then the mean over the image and a linear layer.

    What an image gives doesn't depend on the others of its batch: padding is kept at zero, out of
    poolings and means, and out of the statistics of batch normalisation.

    Args:
        channels: values a pixel.
        outputs: values to predict.
        filters: how many filters each convolution has.
        kernel: their height and width, an odd number.
        activation: one of `ACTIVATIONS` or a module.
        batch_norm: normalise each convolution before its activation.
        dropout: the share of channels that are left out in training.
        pool: "max" or "mean".
        initialization: one of `INITIALIZATIONS`.
        seed: for the same weights again.

    >>> net = CNN(channels=1, outputs=10)
    >>> net(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> net(Ragged.of([torch.zeros(28, 28), torch.zeros(5, 1)], axes=2)).shape
    torch.Size([2, 10])
    """

    ragged_axes: ClassVar[tuple[int, ...]] = (2,)
    """How many axes of each argument's rows may vary: height and width."""
    channels: int
    outputs: int
    kernel: int

    def __init__(
        self,
        channels: int,
        outputs: int,
        filters: Sequence[int] = (16, 32),
        kernel: int = 3,
        activation: ActivationLike = "relu",
        batch_norm: bool = False,
        dropout: float = 0.0,
        pool: str = "max",
        initialization: str = "auto",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        widths = (as_integer("channels", channels), *as_integers("filters", filters, 1))
        if as_integer("kernel", kernel) % 2 == 0:
            raise InputError(f"kernel must be odd, to have a centre. Received: kernel={kernel}")
        self._remember(
            channels=widths[0],
            outputs=as_integer("outputs", outputs),
            filters=widths[1:],
            kernel=as_integer("kernel", kernel),
            activation=activation,
            batch_norm=check_flag("batch_norm", batch_norm),
            dropout=as_fraction("dropout", dropout),
            pool=check_choice("pool", pool, POOLS),
            initialization=initialization,
            seed=as_seed(seed),
        )
        with seeded(seed):
            self.blocks = nn.ModuleList(
                Convolution(before, after, self.kernel, activation, batch_norm, dropout, pool)
                for before, after in pairwise(widths)
            )
            self.head = nn.Linear(widths[-1], self.outputs)
            initialize(self, initialization, activation=activation, seed=seed)

    def forward(self, images: Ragged | torch.Tensor) -> torch.Tensor:
        """Apply the network.

        Args:
            images: Ragged rows of (height, width) or (height, width, channels), or a tensor of
                (images, channels, height, width). Whole numbers are divided by 255.
        """
        values, sizes = self._unpacked(images)
        for block in self.blocks:
            values, sizes = block(values, sizes)
        means = mean_of_all(values.to(layer_dtype(self.head)), sizes)
        found: torch.Tensor = self.head(means)
        return found

    def _unpacked(self, images: Ragged | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(images, channels, height, width), and the sizes; None if nothing is padded."""
        if not isinstance(images, Ragged):
            self._check(images.dim() == 4 and images.shape[1] == self.channels, images.shape[1:])
            return self._floating(images), None
        flat, sizes = flat_values(images, self.channels, axes=2), images.sizes
        self._check(flat is not None, images.values.shape[1:])
        assert flat is not None
        values = Ragged(self._floating(flat), sizes).padded()
        if values.shape[1] == 0 or values.shape[2] == 0:  # no image has a pixel
            values = values.new_zeros(len(sizes), 1, 1, self.channels)
        extent = torch.tensor(values.shape[1:3], device=sizes.device)
        full = bool((sizes == extent).all())
        return values.permute(0, 3, 1, 2).contiguous(), None if full else sizes

    def _check(self, fits: bool, received: Sequence[int]) -> None:
        if not fits:
            raise InputError(
                f"The network takes Ragged images of (height, width, {self.channels}), or a tensor "
                f"of (images, {self.channels}, height, width), because it has channels="
                f"{self.channels}. Received: pixels or images of shape {tuple(received)}"
            )

    def _floating(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(layer_dtype(self.head)) / pixel_scale(values)


class Convolution(nn.Module):
    """One convolution with normalisation, activation, dropout of whole channels, and pooling."""

    def __init__(
        self,
        before: int,
        after: int,
        kernel: int,
        activation: ActivationLike,
        batch_norm: bool,
        dropout: float,
        pool: str,
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(before, after, kernel, padding=kernel // 2)
        self.norm = nn.BatchNorm1d(after) if batch_norm else None  # of pixels: (n, channels)
        self.activation = activation_layer(activation)
        self.dropout = nn.Dropout2d(dropout)
        self.pool = pool

    def forward(
        self, values: torch.Tensor, sizes: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Apply the layer to images and their sizes; give those of the pooled images."""
        found = self.convolution(values)
        if self.norm is not None:
            found = _normalised_pixels(self.norm, found, sizes)
        found = self.dropout(self.activation(found))
        if sizes is None:
            return POOLS[self.pool](found, None), None
        found = found.masked_fill(~pixel_mask(found, sizes), 0)
        return POOLS[self.pool](found, sizes), (sizes + 1) // 2

    def extra_repr(self) -> str:
        """Show what its layers don't."""
        return f"pool={self.pool!r}"


def _normalised_pixels(
    norm: nn.Module, values: torch.Tensor, sizes: torch.Tensor | None
) -> torch.Tensor:
    """Normalise the pixels that images have; padding has no part in it, and becomes zero."""
    if sizes is None:
        return normalised(norm, values.flatten(2)).view_as(values)
    real = pixel_mask(values, sizes)[:, 0]
    pixels = normalised(norm, values.permute(0, 2, 3, 1)[real])
    full = pixels.new_zeros(*real.shape, pixels.shape[1])
    full[real] = pixels
    return full.permute(0, 3, 1, 2)


def pixel_mask(values: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """True at the pixels that each image has: (images, 1, height, width).

    >>> pixel_mask(torch.zeros(1, 3, 1, 2), torch.tensor([[1, 1]])).tolist()
    [[[[True, False]]]]
    """
    return Ragged.inside(sizes, values.shape[-2:])[:, None]


def max_pool(values: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
    """Take the greatest of each 2×2 pixels.

    An image of odd height keeps its last line (sizes are rounded up), so even a single pixel can be
    pooled.

    Args:
        values: (images, channels, height, width).
        sizes: (images, 2), the heights and widths; None if all images fill theirs.

    >>> max_pool(torch.tensor([[[[-1.0, 0.0]]]]), torch.tensor([[1, 1]])).tolist()
    [[[[-1.0]]]]
    """
    if sizes is None:
        return F.max_pool2d(values, 2, ceil_mode=True)
    bare = values.masked_fill(~pixel_mask(values, sizes), -torch.inf)
    found = F.max_pool2d(bare, 2, ceil_mode=True)
    return found.masked_fill(~pixel_mask(found, (sizes + 1) // 2), 0)


def mean_pool(values: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
    """Take the mean of each 2×2 pixels, of those that the image has; arguments as in `max_pool`.

    >>> mean_pool(torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[1, 1]])).tolist()
    [[[[3.0]]]]
    """
    if sizes is None:
        return F.avg_pool2d(values, 2, ceil_mode=True)
    sums = F.avg_pool2d(values, 2, ceil_mode=True, divisor_override=1)
    real = pixel_mask(values, sizes).to(values.dtype)
    counts = F.avg_pool2d(real, 2, ceil_mode=True, divisor_override=1)
    return sums / counts.clamp(min=1)


POOLS = {"max": max_pool, "mean": mean_pool}


def mean_of_all(values: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
    """Take the mean of each channel over the whole image: (images, channels).

    An image without pixels has the mean 0; arguments as in `max_pool`.

    >>> mean_of_all(torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[1, 1]])).tolist()
    [[3.0]]
    """
    if sizes is None:
        return values.mean((2, 3))
    return values.sum((2, 3)) / sizes.prod(1).clamp(min=1)[:, None].to(values.dtype)
