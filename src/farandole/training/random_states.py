"""The random numbers of a process: their states, saved and set."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_states(device: str) -> dict[str, Any]:
    """Where the generators of torch, NumPy and Python stand, as plain values and arrays.

    >>> states = random_states("cpu")
    >>> first = torch.rand(1)
    >>> set_random_states(states, "cpu")
    >>> bool(torch.rand(1) == first)
    True
    """
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    kind, keys, *rest = np.random.get_state(legacy=True)
    states["numpy"] = [kind, np.asarray(keys, np.int64), *rest]
    if device.startswith("cuda"):
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Any], device: str) -> None:
    """Go on from where they stood."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.astype(np.uint32), *rest))
    if device.startswith("cuda") and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """The body may draw and seed as it likes: afterwards the CPU's generators are as before."""
    before = random_states("cpu")
    try:
        yield
    finally:
        set_random_states(before, "cpu")


def seed_everything(seed: int) -> None:
    """Seed torch, Python and NumPy's global generator, which takes 32 bits."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
