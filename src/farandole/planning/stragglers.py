"""Stragglers: how late the slowest of many workers is."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from farandole.planning import constants


def drawn(shape: tuple[int, ...], jitter: float, seed: int) -> npt.NDArray[np.float64]:
    """Factors of a worker's time, one on average (lognormal), the same for the same seed."""
    normal = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(np.exp(jitter * normal - jitter**2 / 2))


@lru_cache(maxsize=1024)
def slowest(workers: int, jitter: float, seed: int = 0) -> float:
    """How much longer than the average worker the slowest takes, on average over many steps.

    >>> slowest(1, 0.03)
    1.0
    >>> slowest(10, 0.03) < slowest(1000, 0.03)
    True
    """
    if workers == 1 or jitter == 0:
        return 1.0
    return float(drawn((constants.DRAWS, workers), jitter, seed).max(1).mean())
