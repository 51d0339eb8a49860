"""Folds: a partition of the rows, of which each is held out once."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def fold_of(rows: int, folds: int, seed: int = 0) -> Array:
    """Which fold each row belongs to: shuffled by the seed, and as even as can be.

    >>> sorted(fold_of(7, 3).tolist())
    [0, 0, 0, 1, 1, 2, 2]
    """
    return np.random.default_rng(seed % (1 << 64)).permutation(np.arange(rows) % folds)


def stratified_fold_of(labels: Array, folds: int, seed: int = 0) -> Array:
    """The same, with each class spread over all folds as evenly as can be.

    >>> found = stratified_fold_of(np.array(list("aaaabbbb")), 2)
    >>> [sorted(found[:4].tolist()), sorted(found[4:].tolist())]
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    shuffled = np.random.default_rng(seed % (1 << 64)).permutation(len(labels))
    _, classes = np.unique(labels, return_inverse=True)
    in_order = shuffled[np.argsort(classes[shuffled], kind="stable")]
    found = np.empty(len(labels), np.int64)
    found[in_order] = np.arange(len(labels)) % folds
    return found
