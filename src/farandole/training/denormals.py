"""Numbers next to zero: too small for full precision, and many times slower to compute with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TINY = 1e-39
"""Below the smallest normal number of single precision."""


@contextmanager
def flushed() -> Iterator[None]:
    """Take such numbers for zero inside of this `with`, and as before after it.

    A network that has become sure of itself is full of them: a perceptron's late steps take a third
    longer because of probabilities of 1e-40.

    >>> with flushed():
    ...     float(torch.tensor(1e-39) * 1)
    0.0
    """
    before = is_flushing()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def is_flushing() -> bool:
    """Whether torch takes such numbers for zero now: there is no way to ask, but to try."""
    return float(torch.tensor(_TINY) * 1) == 0.0
