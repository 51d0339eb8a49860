"""Keras layers on one of several workers: batch statistics of all of them, seeds of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

_FAR = 0x9E3779B1
"""An odd number about 0.6 of 2³²: multiples of it are spread evenly."""


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
