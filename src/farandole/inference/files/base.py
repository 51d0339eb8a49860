"""FilePredictor: what predicts for files, a batch at a time, and what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True)
class PredictedRows:
    """Rows of the output."""

    rows: pa.RecordBatch
    errors: int = 0
    """How many of them could not be answered."""


class FilePredictor(Protocol):
    """Reads batches in the order of the output; threads predict for them in any order."""

    @property
    def schema(self) -> pa.Schema:
        """Of the output."""
        ...

    def count(self) -> int | None:
        """How many rows there will be, if that is known."""
        ...

    def batches(self) -> Iterator[Any]:
        """What there is to predict for, in the order of the output."""
        ...

    def __call__(self, batch: Any) -> PredictedRows:
        """Predict for one batch."""
        ...

    def check(self) -> None:
        """Raise if what was predicted is worth nothing."""
        ...
