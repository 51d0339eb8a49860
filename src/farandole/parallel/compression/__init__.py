"""Compression: gradients that are summed over all workers, and cost less than all their bytes."""

from __future__ import annotations

from farandole.errors import InputError
from farandole.parallel.compression.base import Compression, CountedCollectives
from farandole.parallel.compression.gradients import CompressedGradients
from farandole.parallel.compression.half import Half
from farandole.parallel.compression.powersgd import PowerSGD
from farandole.parallel.compression.topk import TopK

__all__ = [
    "CompressedGradients",
    "Compression",
    "CountedCollectives",
    "Half",
    "PowerSGD",
    "TopK",
    "resolve",
]

_COMPRESSIONS: dict[str, Compression] = {
    "fp16": Half(format="fp16"),
    "bf16": Half(format="bf16"),
    "powersgd": PowerSGD(),
    "topk": TopK(),
}


def resolve(compression: str | Compression) -> Compression:
    """The compression that a name stands for.

    Args:
        compression: `"fp16"`, `"bf16"`, `"powersgd"`, `"topk"`, or one with settings of its own.

    >>> resolve("powersgd")
    PowerSGD(rank=4, start=10)
    """
    if not isinstance(compression, str):
        if not callable(getattr(compression, "compressor", None)):
            raise _unknown(compression)
        return compression
    if compression not in _COMPRESSIONS:
        raise _unknown(compression)
    return _COMPRESSIONS[compression]


def _unknown(received: object) -> InputError:
    names = ", ".join(map(repr, _COMPRESSIONS))
    return InputError(
        f"compression must be None, one of {names}, or an object such as PowerSGD(rank=4) or "
        f"TopK(share=0.01). Received: compression={received!r}"
    )
