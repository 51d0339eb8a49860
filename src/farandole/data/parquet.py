"""Parquet files, row group by row group and page by page, so that little is in memory at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

_FILE_BUFFER = 1 << 20


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file, and where it stands there."""

    fragment: Any
    number: int
    offset: int

    @property
    def rows(self) -> int:
        """How many there are, by the file's footer."""
        return int(self.fragment.metadata.row_group(self.number).num_rows)

    def batches(
        self,
        schema: pa.Schema,
        columns: Sequence[str],
        most_rows: int,
        most_bytes: int | None = None,
        *,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Its rows, page by page: a scanner of a data set has whole row groups in memory.

        Args:
            schema: of the data set; columns get its types, and nulls where this file has none.
            columns: those to read.
            most_rows: of a batch.
            most_bytes: of a batch, about; None: as many as the rows have.
            use_threads: whether to decode columns side by side.
        """
        keys = ds.get_partition_keys(self.fragment.partition_expression)
        is_local = isinstance(self.fragment.filesystem, LocalFileSystem)
        with self.fragment.open() as source:
            file = pq.ParquetFile(
                source,
                metadata=self.fragment.metadata,
                buffer_size=_FILE_BUFFER if is_local else 0,
                pre_buffer=not is_local,  # of object stores, large parts are better read at once
            )
            own = [name for name in columns if name in file.schema_arrow.names]
            rows = most_rows
            if most_bytes is not None:
                rows = self._rows_at_once(file, own, most_rows, most_bytes)
            for batch in file.iter_batches(
                rows, row_groups=[self.number], columns=own, use_threads=use_threads
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
    """Those of a file, in their order.

    >>> import tempfile
    >>> file = f"{tempfile.mkdtemp()}/numbers.parquet"
    >>> pq.write_table(pa.table({"x": range(5)}), file, row_group_size=3)
    >>> [(group.offset, group.rows) for group in row_groups(next(ds.dataset(file).get_fragments()))]
    [(0, 3), (3, 2)]
    """
    offset = 0
    for number in range(fragment.metadata.num_row_groups):
        group = RowGroup(fragment, number, offset)
        yield group
        offset += group.rows


def _conformed(
    batch: pa.RecordBatch, schema: pa.Schema, columns: Sequence[str], keys: dict[str, Any]
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
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
