"""Top-k: only the largest gradients travel; the others wait until they have grown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from farandole.errors import InputError
from farandole.parallel.compression.base import CountedCollectives, wide


@dataclass(frozen=True, kw_only=True)
class TopK:
    """Each worker sends its largest gradients only, with their places.

    What isn't sent is added to the next update's gradients (error feedback), so nothing is lost,
    only late. See Aji and Heafield, *Sparse Communication for Distributed Gradient Descent* (2017).

    Args:
        share: The part of all values to send, over 0 and up to 1. A value costs twice its bytes,
            as its place travels along, and goes to every worker: of N workers, each sends
            `2 (N - 1) share` of a gradient, where an all-reduce sends `2 (N - 1) / N`.

    >>> TopK(share=0.05).name
    'topk'
    """

    name: ClassVar[str] = "topk"
    share: float = 0.01

    def check(self) -> None:
        """Raise for a share that isn't one."""
        if not 0 < self.share <= 1:
            raise InputError(
                f"share is the part of gradients to send, over 0 and up to 1. "
                f"Received: share={self.share!r}"
            )

    def compressor(
        self, shapes: Sequence[torch.Size], like: torch.Tensor, collectives: CountedCollectives
    ) -> Largest:
        """Prepare for a buffer; shapes don't matter."""
        self.check()
        return Largest(math.ceil(self.share * len(like)), like, collectives)


class Largest:
    """Sums the largest values of each worker."""

    def __init__(self, count: int, like: torch.Tensor, collectives: CountedCollectives) -> None:
        self._count = count
        self._collectives = collectives
        self._residual = torch.zeros_like(like, dtype=wide(like.dtype))
        self._places = torch.int32 if len(like) < 2**31 else torch.int64

    def sum_(self, flat: torch.Tensor) -> None:
        """Put the sum of what was sent in place; keep what wasn't."""
        self._residual += flat
        places = self._residual.abs().topk(self._count, sorted=False).indices
        values = self._residual[places].to(flat.dtype)
        self._residual[places] -= values  # not zero: a narrow type may have rounded
        parts = [places.to(self._places).view(torch.uint8), values.view(torch.uint8)]
        messages = self._collectives.all_gather(torch.cat(parts))
        flat.zero_()
        for message in messages:  # by rank, so that all workers add in the same order
            place, value = message.split([len(part) for part in parts])
            numbers = place.clone().view(self._places)
            flat.index_add_(0, numbers, value.clone().view(flat.dtype))

    def state(self) -> Any:
        """What waits to be sent."""
        return {"residual": self._residual}

    def load_states(self, states: Sequence[Any], leaders: Any) -> None:
        """Hold back what they held back."""
        for state in states:
            self._residual += state["residual"]
