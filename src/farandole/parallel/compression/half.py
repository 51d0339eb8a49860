"""Half: gradients in 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farandole.arguments import check_choice
from farandole.parallel.compression.base import CountedCollectives, wide

_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_TOP = 15  # the largest value of a message lies below 2 ** 15: half of what float16 can hold
_REACH = 110  # exponents that float32 has room for, whatever is multiplied


@dataclass(frozen=True, kw_only=True)
class Half:
    """Gradients travel in 16 bits, and are summed in 32.

    Each worker gets a chunk of all workers' gradients, sums it, and sends the sum to all: the bytes
    of an all-reduce in half precision, but two roundings, however many workers there are. Each
    message is scaled by a power of two, so that nothing is too large or too small for float16.

    Args:
        format: `"fp16"` (11 bits of precision) or `"bf16"` (8 bits).

    >>> Half(format="bf16").name
    'bf16'
    """

    format: str = "fp16"

    @property
    def name(self) -> str:
        """The format."""
        return self.format

    def check(self) -> None:
        """Raise for an unknown format."""
        check_choice("format", self.format, _FORMATS)

    def compressor(
        self, shapes: Sequence[torch.Size], like: torch.Tensor, collectives: CountedCollectives
    ) -> Halves:
        """Prepare for a buffer; shapes don't matter."""
        self.check()
        return Halves(_FORMATS[self.format], collectives)


class Halves:
    """Sums in two steps: chunk i to worker i, then the sum of each chunk to all."""

    def __init__(self, dtype: torch.dtype, collectives: CountedCollectives) -> None:
        self._dtype = dtype
        self._collectives = collectives

    def sum_(self, flat: torch.Tensor) -> None:
        """Put the sum of the rounded values in place, rounded once more."""
        workers, size, dtype = self._collectives.workers, len(flat), wide(flat.dtype)
        chunks = torch.zeros(workers, -(-size // workers), dtype=dtype, device=flat.device)
        chunks.view(-1)[:size] = flat
        parts = _unpack(
            self._collectives.all_to_all(_pack(chunks, self._dtype)), self._dtype, dtype
        )
        mine = _pack(parts.sum(0, keepdim=True), self._dtype)[0]
        sums = _unpack(self._collectives.all_gather(mine), self._dtype, dtype)
        flat.copy_(sums.reshape(-1)[:size])

    def state(self) -> None:
        """It remembers nothing."""

    def load_states(self, states: Sequence[Any], leaders: Any) -> None:
        """There is nothing to go on from."""


def _pack(chunks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each row as 16-bit words: an exponent, then its values divided by two to that power."""
    most = chunks.abs().amax(1, keepdim=True)
    exponents = torch.frexp(most).exponent - _TOP
    usual = most.isfinite() & (most > 0)  # NaN and infinity travel as they are
    exponents = exponents.where(usual, 0).clamp(-_REACH, _REACH)
    values = torch.ldexp(chunks, -exponents).to(dtype)
    return torch.cat([exponents.to(torch.int16), values.view(torch.int16)], 1)


def _unpack(messages: torch.Tensor, dtype: torch.dtype, into: torch.dtype) -> torch.Tensor:
    values = messages[:, 1:].contiguous().view(dtype).to(into)
    return torch.ldexp(values, messages[:, :1].int())
