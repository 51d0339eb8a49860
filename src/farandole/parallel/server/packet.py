"""Packet: some numbers and some tensors, of whatever types, as one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

_ALIGNMENT = 16  # bytes of the widest type there is


class Packet:
    """Memory for numbers and for tensors shaped like these, in one buffer of bytes.

    >>> packet = Packet(1, [torch.zeros(2, 3), torch.zeros(4, dtype=torch.float64)])
    >>> packet.pack([0.5], [torch.ones(2, 3), torch.ones(4, dtype=torch.float64)])
    >>> packet.numbers.tolist(), packet.tensors[1].tolist(), packet.size
    ([0.5], [1.0, 1.0, 1.0, 1.0], 56)
    """

    def __init__(self, numbers: int, like: Sequence[torch.Tensor]) -> None:
        sizes = [8 * numbers, *(tensor.nbytes for tensor in like)]
        starts = [0, *accumulate(_aligned(size) for size in sizes)]
        # On the CPU, wherever the tensors are: gloo sends from there.
        self.bytes = torch.zeros(starts[-1], dtype=torch.uint8)
        places = [
            self.bytes[start : start + size] for start, size in zip(starts, sizes, strict=False)
        ]
        self.numbers = places[0].view(torch.float64)
        self.tensors = [
            place.view(tensor.dtype).view(tensor.shape)
            for place, tensor in zip(places[1:], like, strict=True)
        ]
        self.size = sum(sizes[1:])
        """Bytes of the tensors alone."""

    def pack(self, numbers: Sequence[float], tensors: Iterable[torch.Tensor]) -> None:
        """Copy these in."""
        self.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        with torch.no_grad():
            for place, tensor in zip(self.tensors, tensors, strict=True):
                place.copy_(tensor)

    def unpack(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy what came into these."""
        with torch.no_grad():
            for place, tensor in zip(self.tensors, tensors, strict=True):
                tensor.copy_(place)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
