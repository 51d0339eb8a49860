"""Tables in files, a few megabytes at a time, whatever the size of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from farandole.data.frame import ARROW_ERRORS
from farandole.errors import InputError
from farandole.inference.bulk.files import Holdings

PIECE_BYTES = 8 << 20
_PIECE_ROWS = 8192
_FILE_BUFFER = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Some rows of a file, and where they stand in it."""

    rows: pa.RecordBatch
    file: str
    offset: int

    @property
    def place(self) -> str:
        """The file, to be said after a row's number."""
        return f" of {self.file!r}"


@dataclass(frozen=True)
class Tables:
    """The rows of files of one format, those of one folder's partitions included."""

    held: Holdings

    @property
    def schema(self) -> pa.Schema:
        """The columns, after the first file and the names of folders (key=value)."""
        return self._dataset.schema.remove_metadata()

    @property
    def metadata(self) -> dict[bytes, bytes] | None:
        """What the first file notes about its columns."""
        found: dict[bytes, bytes] | None = self._dataset.schema.metadata
        return found

    def count(self) -> int | None:
        """How many rows there are, where files tell that without being read."""
        known = self.held.format in ("parquet", "arrow")
        return int(self._dataset.count_rows()) if known else None

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """All rows in their order, with these columns."""
        for fragment in self._dataset.get_fragments():
            offset = 0
            try:
                for batch in self._batches(fragment, list(columns)):
                    for rows in small(batch):
                        yield Piece(rows, fragment.path, offset)
                        offset += rows.num_rows
            except (*ARROW_ERRORS, OSError) as error:
                raise InputError(
                    f"{fragment.path!r} can't be read after row {offset:,}: {error}"
                ) from error

    @cached_property
    def _dataset(self) -> ds.Dataset:
        try:
            return ds.dataset(
                list(self.held.files),
                format=_format(self.held.format),
                partitioning=ds.partitioning(flavor="hive"),
                partition_base_dir=self.held.root,
            )
        except (*ARROW_ERRORS, OSError) as error:
            raise InputError(
                f"{self.held.root!r} can't be read as {self.held.format}: {error}"
            ) from error

    def _batches(self, fragment: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self.held.format == "parquet":
            yield from _parquet_batches(fragment, self.schema, columns)
            return
        yield from fragment.scanner(
            schema=self._dataset.schema,
            columns=columns,
            batch_size=_PIECE_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
        ).to_batches()


def small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts that are no larger than a piece on average, and not empty.

    >>> wide = pa.record_batch({"x": [b"0" * PIECE_BYTES] * 3})
    >>> [part.num_rows for part in small(wide)]
    [1, 1, 1]
    """
    rows = int(min(_PIECE_ROWS, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, max(rows, 1)):
        yield batch.slice(start, max(rows, 1))


def _parquet_batches(
    fragment: Any, schema: pa.Schema, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Read page by page: a scanner of a data set has whole row groups in memory, and several."""
    keys = ds.get_partition_keys(fragment.partition_expression)
    with fragment.open() as source:
        file = pq.ParquetFile(source, buffer_size=_FILE_BUFFER, pre_buffer=False)
        own = [name for name in columns if name in file.schema_arrow.names]
        for group in range(file.num_row_groups):
            rows = _rows_at_once(file, group, own)
            for batch in file.iter_batches(rows, row_groups=[group], columns=own):
                yield _conformed(batch, schema, columns, keys)


def _rows_at_once(file: pq.ParquetFile, group: int, columns: list[str]) -> int:
    """How many rows fit in a piece, judged by the footer and by a few of them.

    Of values that repeat the footer tells next to nothing, of rows that grow the first ones.
    """
    about = file.metadata.row_group(group)
    parts = [about.column(number) for number in range(about.num_columns)]
    size = sum(
        part.total_uncompressed_size
        for part in parts
        if any(
            part.path_in_schema == name or part.path_in_schema.startswith(f"{name}.")
            for name in columns
        )
    )
    first = next(file.iter_batches(16, row_groups=[group], columns=columns), None)
    if first is None or first.num_rows == 0:
        return _PIECE_ROWS
    widest = max(size / max(about.num_rows, 1), first.nbytes / first.num_rows, 1)
    return max(1, min(_PIECE_ROWS, int(PIECE_BYTES / widest)))


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


def _format(name: str) -> Any:
    if name == "tsv":
        from pyarrow.csv import ParseOptions

        return ds.CsvFileFormat(parse_options=ParseOptions(delimiter="\t"))
    return name
