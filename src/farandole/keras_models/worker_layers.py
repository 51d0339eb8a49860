"""Keras layers whose results depend on the batch: by its statistics, or by random numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from farandole.keras_models.backend import require_torch_backend

_FAR = 0x9E3779B1
"""An odd number about 0.6 of 2³²: multiples of it are spread evenly."""


_RATES = ("rate", "stddev", "dropout", "recurrent_dropout")
"""Where a layer that has a seed may have a zero: then it draws nothing."""


class Pass(Protocol):
    """What is known of a forward pass."""

    @property
    def counts_rows(self) -> bool:
        """Whether its rows count; else they are placeholders."""
        ...


class Moments:
    """Mean and variance of a batch that several workers share, in place of a layer's own.

    Keras takes the variance of the rows as they are (biased), and moves its statistics by that.

    >>> class All:
    ...     counts_rows = True
    >>> mean, variance = Moments(-1, lambda sums: 2 * sums, All())(torch.tensor([[1.0], [3.0]]))
    >>> mean.item(), variance.item()
    (2.0, 1.0)
    """

    def __init__(
        self, axis: int, summed: Callable[[torch.Tensor], torch.Tensor], current: Pass
    ) -> None:
        self._axis, self._summed, self._pass = axis, summed, current

    def __call__(
        self, inputs: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The statistics for each channel."""
        wide = inputs.double()  # before squaring: far from zero, variance is in the last digits
        channels = wide.movedim(self._axis, -1).reshape(-1, inputs.shape[self._axis])
        weights = channels.new_ones(len(channels), 1)
        if mask is not None:
            weights = mask.to(weights.dtype).reshape(-1, 1)
        if not self._pass.counts_rows:
            weights = weights * 0
        mine = [(channels * weights).sum(0), (channels.square() * weights).sum(0), weights.sum(0)]
        sums = self._summed(torch.cat(mine))
        count = channels.shape[1]
        total = sums[-1].clamp(min=1)
        mean = sums[:count] / total
        variance = (sums[count:-1] / total - mean.square()).clamp(min=0)
        return mean.to(inputs.dtype), variance.to(inputs.dtype)


def shift_seed(generator: Any, rank: int) -> None:
    """Let a Keras seed generator give seeds that differ between workers; its state is the same.

    The first worker draws what one process alone would draw. Keras adds a counter of calls to the
    seed, so that seeds have to be far apart: else a worker would draw what another draws later.
    """
    drawn = type(generator).next
    shift = (rank * _FAR + 2**31) % 2**32 - 2**31

    def shifted(ordered: bool = True) -> Any:
        seed = drawn(generator, ordered)
        return seed + torch.tensor([shift, 0], dtype=seed.dtype, device=seed.device)

    generator.next = shifted if rank else drawn.__get__(generator)


def varies_by_batch(layer: nn.Module) -> bool:
    """Whether a layer of Keras gives a row other results in every batch of a training.

    >>> keras = require_torch_backend()
    >>> layers = keras.layers.Dropout(0.5), keras.layers.LSTM(2).cell, keras.layers.Dense(2)
    >>> [varies_by_batch(one) for one in layers]
    [True, False, False]
    """
    if "keras" not in sys.modules:  # who has made a layer has imported it
        return False
    keras: Any = require_torch_backend()
    if not isinstance(layer, keras.Layer):
        return False
    if isinstance(layer, keras.layers.BatchNormalization):
        return bool(layer.trainable)
    rates = [getattr(layer, name) for name in _RATES if hasattr(layer, name)]
    numbers = [one for one in rates if isinstance(one, int | float)]
    return bool(layer._seed_generators) and (not numbers or any(numbers))
