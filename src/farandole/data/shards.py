"""A worker's rows on its own disk, memory-mapped: no second store, no limit by memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from farandole.data.chunking import RowSizes
from farandole.data.columns import BadRows
from farandole.data.mapped_array import (
    MappedArray,
    MappedRaggedArray,
    RaggedColumn,
    mapped_bytes,
)
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]

RESIDENT_LIMIT = 512 << 20
"""Mapped pages that a worker keeps resident before it gives them back to the page cache."""

_ROWS_AT_ONCE = 64


@dataclass
class Shard:
    """All rows of one worker: a tensor a column, and their keys."""

    columns: dict[str, torch.Tensor]
    keys: Array
    problems: list[BadRows] = field(default_factory=list)
    mapped_arrays: list[MappedArray | MappedRaggedArray] = field(default_factory=list)
    ragged: dict[str, RaggedColumn] = field(default_factory=dict)
    """The columns whose rows differ in size."""
    tables: dict[tuple[str, ...], torch.Tensor] = field(default_factory=dict)
    """Columns of plain numbers that stand side by side in one file, together."""

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def nbytes(self) -> int:
        """The size of all columns."""
        fixed = sum(column.nbytes for column in self.columns.values())
        return fixed + sum(column.nbytes for column in self.ragged.values())

    def shape(self, name: str) -> tuple[int | None, ...]:
        """The shape of one row of a column: None for an axis that varies."""
        if name in self.ragged:
            return self.ragged[name].shape
        return tuple(self.columns[name].shape[1:])

    def row_sizes(self, rows: Array) -> list[RowSizes]:
        """How large these rows are, column by column."""
        fixed = [
            RowSizes.of_one_size(len(rows), column.shape[1:]) for column in self.columns.values()
        ]
        varying = [
            RowSizes(column.sizes.numpy()[rows], math.prod(column.values.shape[1:]))
            for column in self.ragged.values()
        ]
        return fixed + varying

    def take(self, name: str, rows: torch.Tensor | slice) -> torch.Tensor | Ragged:
        """Some rows of a column: by number, or as a slice, which copies nothing."""
        if name not in self.ragged:
            return self.take_tensor(name, rows)
        column = self.ragged[name]
        if isinstance(rows, slice):
            self._keep_to_limit()
            return column.part(rows)
        small = self.nbytes <= RESIDENT_LIMIT
        return column.take(rows, None if small else self._keep_to_limit)

    def take_tensor(self, name: str, rows: torch.Tensor | slice) -> torch.Tensor:
        """Some rows of a column that has one size.

        Touching a row maps the pages around it too, up to 2 MB of them, so those of a large
        shard are taken a few at a time, with a look at resident memory in between.
        """
        column = self.columns[name]
        if isinstance(rows, slice):
            self._keep_to_limit()
            return column[rows]
        return self._take_rows(column, rows)

    def take_joined(self, names: tuple[str, ...], rows: torch.Tensor) -> torch.Tensor | None:
        """Some rows of several columns side by side, if that is how they are kept."""
        for together, table in self.tables.items():
            first = together.index(names[0]) if names[0] in together else 0
            if together[first : first + len(names)] == names:
                part = table[:, first : first + len(names)]
                return self._take_rows(part, rows)
        return None

    def _take_rows(self, column: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self.nbytes <= RESIDENT_LIMIT or len(rows) == 0:
            return column.index_select(0, rows)
        return torch.cat([self._take_some(column, some) for some in rows.split(_ROWS_AT_ONCE)])

    def _take_some(self, column: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self._keep_to_limit()
        return column.index_select(0, rows)

    def _keep_to_limit(self) -> None:
        if self.nbytes > RESIDENT_LIMIT and mapped_bytes() > RESIDENT_LIMIT:
            for array in self.mapped_arrays:
                array.release()

    def close(self) -> None:
        """Drop the tensors and the files behind them."""
        self.columns.clear()
        self.tables.clear()
        self.ragged.clear()
        for array in self.mapped_arrays:
            array.close()
