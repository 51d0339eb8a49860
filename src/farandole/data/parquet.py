"""Parquet files, row group by row group and page by page, so that little is in memory at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

_LOCAL_BUFFER, _REMOTE_BUFFER = 1 << 20, 8 << 20
_MOST_AT_ONCE = 64 << 20
"""A row group of an object store that is larger than this isn't fetched as a whole."""


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file, and where it stands there."""

    fragment: Any
    number: int
    offset: int

    @property
    def rows(self) -> int:
        """How many there are, by the file's footer."""
        return int(self._footer.num_rows)

    @property
    def _footer(self) -> Any:
        return self.fragment.metadata.row_group(self.number)

    def batches(
        self,
        schema: pa.Schema,
        columns: Sequence[str],
        most_rows: int,
        most_bytes: int,
        *,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Its rows, page by page: a scanner of a data set has whole row groups in memory.

        Args:
            schema: of the data set; columns get its types, and nulls where this file has none.
            columns: those to read.
            most_rows: of a batch.
            most_bytes: of a batch, about.
            use_threads: whether to decode columns side by side.
        """
        keys = ds.get_partition_keys(self.fragment.partition_expression)
        with self.fragment.open() as source:
            buffering = self._buffering(columns)
            file = pq.ParquetFile(source, metadata=self.fragment.metadata, **buffering)
            found = file.schema_arrow  # made anew each time that one asks for it
            there = set(found.names)
            own = [name for name in columns if name in there]
            widths = [_width(found.field(name).type) for name in own]
            rows = self._rows_at_once(file, own, widths, most_rows, most_bytes)
            for batch in file.iter_batches(
                rows, row_groups=[self.number], columns=own, use_threads=use_threads
            ):
                yield _conformed(batch, schema, columns, keys)

    def _buffering(self, columns: Sequence[str]) -> dict[str, Any]:
        """Of object stores large parts are better read at once, unless they are too large."""
        if isinstance(self.fragment.filesystem, LocalFileSystem):
            return {"buffer_size": _LOCAL_BUFFER, "pre_buffer": False}
        if sum(chunk.total_compressed_size for chunk in self._chunks(columns)) > _MOST_AT_ONCE:
            return {"buffer_size": _REMOTE_BUFFER, "pre_buffer": False}
        return {"pre_buffer": True}

    def _chunks(self, columns: Sequence[str]) -> list[Any]:
        """What the footer says about columns and their fields."""
        about, fields = self._footer, tuple(f"{name}." for name in columns)
        chunks = (about.column(number) for number in range(about.num_columns))
        return [c for c in chunks if f"{c.path_in_schema}.".startswith(fields)]

    def _rows_at_once(
        self,
        file: pq.ParquetFile,
        columns: list[str],
        widths: list[float | None],
        most_rows: int,
        most_bytes: int,
    ) -> int:
        """How many rows to read at once, judged by their widths, else by the footer and a few rows.

        Of values that repeat the footer tells next to nothing, of rows that grow the first ones.
        """
        widest = sum(width for width in widths if width is not None)
        if None in widths:
            first = next(file.iter_batches(16, row_groups=[self.number], columns=columns), None)
            seen = first.nbytes / first.num_rows if first is not None and first.num_rows else 0
            encoded = sum(chunk.total_uncompressed_size for chunk in self._chunks(columns))
            widest = max(encoded / max(self.rows, 1), seen)
        return max(1, min(most_rows, int(most_bytes / max(widest, 1))))


def _width(kind: pa.DataType) -> float | None:
    """How many bytes a value takes; None if that varies.

    >>> _width(pa.float32()), _width(pa.list_(pa.int64(), 3)), _width(pa.list_(pa.int64()))
    (4.0, 24.0, None)
    """
    if pa.types.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return kind.bit_width / 8 if fixed else None


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
    arrays, there = [], dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in columns:
        kind = schema.field(name).type
        if name in there:
            column = there[name]
            arrays.append(column if column.type == kind else column.cast(kind))
        else:
            arrays.append(pa.repeat(pa.scalar(keys.get(name), kind), batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
