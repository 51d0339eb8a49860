"""The numbers that training computes with: autocast, and denormal numbers as zeros."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_DENORMAL = 1e-39
"""Below the smallest normal number of single precision."""


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """What a forward pass runs in, by a recipe's `precision`.

    >>> with autocast("bfloat16", "cpu"):
    ...     print((torch.ones(1, 1) @ torch.ones(1, 1)).dtype)
    torch.bfloat16
    """
    if precision == "bfloat16":
        return torch.autocast(device.split(":")[0], dtype=torch.bfloat16)
    return nullcontext()


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Treat denormal numbers as zeros inside of this `with`, and as before after it.

    A network that predicts with near certainty is full of them, and they are slow: the late steps
    of a perceptron take a third longer because of probabilities of 1e-40.

    >>> with flush_denormals():
    ...     float(torch.tensor(1e-39) * 1)
    0.0
    """
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushes_denormals() -> bool:
    """Whether torch treats denormal numbers as zeros now. Torch has no getter, so try one."""
    return float(torch.tensor(_DENORMAL) * 1) == 0.0
