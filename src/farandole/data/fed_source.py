"""Rows that an engine feeds to workers: what those are told of them, and pieces on their way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from farandole.data.schema import KEY
from farandole.data.source import Placement

FIRST_ROWS = 32
"""Of a data set, to try a network with."""
_CHUNK_BYTES, _CHUNK_ROWS = 16 << 20, 1 << 16


@dataclass(frozen=True)
class FedSource:
    """Rows that the engine feeds to workers as they are wanted."""

    arrow_schema: pa.Schema
    placement: Placement

    def schema(self) -> pa.Schema:
        """Of all columns."""
        return self.arrow_schema

    def types(self, names: Sequence[str]) -> pa.Schema:
        """Of some columns."""
        return pa.schema([self.arrow_schema.field(name) for name in names])

    def batches(
        self, rank: int, size: int, names: tuple[str, ...], fed: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """What is fed."""
        return fed


def pieces(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """A table in batches of a few megabytes."""
    rows = max(1, min(_CHUNK_ROWS, table.num_rows * _CHUNK_BYTES // max(table.nbytes, 1)))
    yield from table.combine_chunks().to_batches(max_chunksize=rows)


def first_batch(table: pa.Table) -> pa.RecordBatch:
    """The rows of a small table, numbered by their positions."""
    batch = next(pieces(table))
    return batch.append_column(KEY, pa.array(range(batch.num_rows), pa.int64()))
