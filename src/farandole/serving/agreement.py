"""Whether another engine gives the answers that a model gives as it was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.errors import InputError
from farandole.serving.model import Model, Rows

Array = np.ndarray[Any, Any]

_TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
"""By the numbers that a network works with: what another order of sums changes, with a margin."""
_HIGHEST = (256, 2, 1)
"""Whole numbers to try stay below these: what a network looks up may be a table of one row."""


@dataclass(frozen=True)
class Expected:
    """Random rows, and what the model says of them as it was loaded."""

    batches: list[list[Rows]]
    answers: list[list[Array]]
    tolerance: float

    @classmethod
    def of(cls, model: Model, max_batch: int, *, with_nan: bool = False) -> Expected:
        """Try one row, two, a full batch and one that is fuller; if asked for, NaN in a row."""
        for highest in _HIGHEST:
            sizes = (1, max_batch, 2, max_batch + 1)
            batches = [random_columns(model, rows, highest) for rows in sizes]
            if with_nan:
                batches.append([nan_in_first_row(one) for one in batches[2]])
            try:
                answers = [model.answer(one).outputs for one in batches]
                return cls(batches, answers, _TOLERANCES.get(model.signature.floating, 1e-2))
            except Exception:
                if highest == _HIGHEST[-1]:
                    raise
        raise AssertionError("the last of them returns or raises")

    @property
    def one_row(self) -> list[Rows]:
        """A batch of one row."""
        return self.batches[0]

    @property
    def full_batch(self) -> list[Rows]:
        """A batch of as many rows as a batch may have."""
        return self.batches[1]

    def check(self, model: Model) -> None:
        """Raise unless this model gives the same answers."""
        for columns, wanted in zip(self.batches, self.answers, strict=True):
            found = model.answer(columns).outputs
            if not equal_answers(found, wanted, self.tolerance):
                what = "NaN" if _has_nan(columns) else f"{len(columns[0])} rows"
                raise InputError(f"It gives other answers than the network itself for {what}")


def equal_answers(found: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> bool:
    """Whether these are the same numbers, but for what the order of a sum changes.

    >>> one = np.array([0.0, 1.0, 100.0])
    >>> equal_answers([one + 1e-4], [one], 1e-4), equal_answers([one * 1.01], [one], 1e-4)
    (True, False)
    """
    return len(found) == len(wanted) and all(
        _equal(one, other, tolerance) for one, other in zip(found, wanted, strict=True)
    )


def _equal(found: Array, wanted: Array, tolerance: float) -> bool:
    if found.shape != wanted.shape:
        return False
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    return bool(np.allclose(found, wanted, tolerance, tolerance * scale, equal_nan=True))


def random_columns(model: Model, rows: int, highest: int) -> list[Rows]:
    """Rows as a request would bring them; the same ones every time."""
    random = np.random.default_rng(rows)
    about = model.signature
    return [
        _random(random, (rows, *[size or 0 for size in shape]), np.dtype(dtype), highest)
        for shape, dtype in zip(about.shapes, about.dtypes, strict=True)
    ]


def _random(
    random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], highest: int
) -> Array:
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    limit = {"b": 2, "i": min(highest, 128)}.get(dtype.kind, highest)
    return random.integers(0, limit, shape).astype(dtype)


def nan_in_first_row(column: Rows) -> Rows:
    """A copy with one NaN, where that is a number of the column's type."""
    if not isinstance(column, np.ndarray) or column.dtype.kind != "f" or column.size == 0:
        return column
    changed = column.copy()
    changed.flat[0] = np.nan
    return changed


def _has_nan(columns: Sequence[Rows]) -> bool:
    return any(
        isinstance(one, np.ndarray) and one.dtype.kind == "f" and bool(np.isnan(one).any())
        for one in columns
    )
