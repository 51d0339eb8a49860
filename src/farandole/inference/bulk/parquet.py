"""Parquet files, row group by row group: two are decoded while others are worked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

_FILE_BUFFER = 1 << 20


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file, and where it stands there."""

    fragment: Any
    number: int
    offset: int

    def batches(
        self, schema: pa.Schema, columns: list[str], most_rows: int, most_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Its rows, page by page: a scanner of a data set has whole row groups in memory."""
        keys = ds.get_partition_keys(self.fragment.partition_expression)
        with self.fragment.open() as source:
            file = pq.ParquetFile(
                source, metadata=self.fragment.metadata, buffer_size=_FILE_BUFFER, pre_buffer=False
            )
            own = [name for name in columns if name in file.schema_arrow.names]
            rows = self._rows_at_once(file, own, most_rows, most_bytes)
            for batch in file.iter_batches(
                rows, row_groups=[self.number], columns=own, use_threads=False
            ):
                yield _conformed(batch, schema, columns, keys)

    def _rows_at_once(
        self, file: pq.ParquetFile, columns: list[str], most_rows: int, most_bytes: int
    ) -> int:
        """How many rows to read at once, judged by the footer and by a few of them.

        Of values that repeat the footer tells next to nothing, of rows that grow the first ones.
        """
        about = file.metadata.row_group(self.number)
        parts = [about.column(number) for number in range(about.num_columns)]
        size = sum(
            part.total_uncompressed_size
            for part in parts
            if any(
                part.path_in_schema == name or part.path_in_schema.startswith(f"{name}.")
                for name in columns
            )
        )
        first = next(file.iter_batches(16, row_groups=[self.number], columns=columns), None)
        if first is None or first.num_rows == 0:
            return most_rows
        widest = max(size / max(about.num_rows, 1), first.nbytes / first.num_rows, 1)
        return max(1, min(most_rows, int(most_bytes / widest)))


def row_groups(fragment: Any) -> Iterator[RowGroup]:
    """Those of a file, in their order."""
    offset = 0
    for number in range(fragment.metadata.num_row_groups):
        yield RowGroup(fragment, number, offset)
        offset += fragment.metadata.row_group(number).num_rows


def _conformed(
    batch: pa.RecordBatch, schema: pa.Schema, columns: list[str], keys: dict[str, Any]
) -> pa.RecordBatch:
    """The columns in the types of the first file; null where this file has none."""
    arrays = []
    for name in columns:
        kind = schema.field(name).type
        if name in batch.schema.names:
            column = batch.column(name)
            arrays.append(column if column.type == kind else column.cast(kind))
        else:
            arrays.append(pa.repeat(pa.scalar(keys.get(name), kind), batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, names=columns)
