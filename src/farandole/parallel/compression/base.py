"""What a compression is: a choice that makes, for each buffer of gradients, one that sums it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from farandole.parallel.compression.exchange import Exchange


class Compressor(Protocol):
    """Sums one flat buffer of gradients over all workers, update after update."""

    def sum_(self, flat: torch.Tensor) -> None:
        """Put (nearly) the sum over all workers in place; the same bits on all of them."""
        ...


class Compression(Protocol):
    """A way to send less than all bytes of the gradients."""

    @property
    def name(self) -> str:
        """What it is called by."""
        ...

    def check(self) -> None:
        """Raise for settings that make no sense."""
        ...

    def compressor(
        self, shapes: Sequence[torch.Size], like: torch.Tensor, exchange: Exchange
    ) -> Compressor:
        """Prepare for gradients of these shapes, one after the other in a buffer like that."""
        ...


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type to calculate in: that of the gradients, but not narrower than float32.

    >>> wide(torch.bfloat16), wide(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
