"""Tables in files, a few megabytes at a time, whatever the size of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from farandole.data import ARROW_ERRORS, row_groups
from farandole.errors import InputError
from farandole.inference.files.formats import FileSet
from farandole.inference.prefetch import prefetch_streams

BATCH_BYTES = 8 << 20
_BATCH_ROWS = 8192
_READERS, _BATCHES_AHEAD = 2, 8
"""Decoding is most of the work for a small network: two threads, and so many batches each."""


@dataclass(frozen=True)
class TableBatch:
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

    files: FileSet

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
        known = self.files.format in ("parquet", "arrow")
        return int(self._dataset.count_rows()) if known else None

    def batches(self, columns: Sequence[str]) -> Iterator[TableBatch]:
        """All rows in their order, with these columns."""
        return prefetch_streams(self._streams(list(columns)), _READERS, _BATCHES_AHEAD)

    def _streams(self, columns: list[str]) -> Iterator[Iterator[TableBatch]]:
        for fragment in self._dataset.get_fragments():
            if self.files.format != "parquet":
                yield _located(fragment.path, 0, self._scanned(fragment, columns))
                continue
            with _reading(fragment.path, 0):
                groups = list(row_groups(fragment))
            for group in groups:
                batches = group.batches(self.schema, columns, _BATCH_ROWS, BATCH_BYTES)
                yield _located(fragment.path, group.offset, batches)

    @cached_property
    def _dataset(self) -> ds.Dataset:
        try:
            return ds.dataset(
                list(self.files.paths),
                format=_format(self.files.format),
                partitioning=ds.partitioning(flavor="hive"),
                partition_base_dir=self.files.root,
            )
        except (*ARROW_ERRORS, OSError) as error:
            raise InputError(
                f"{self.files.root!r} can't be read as {self.files.format}: {error}"
            ) from error

    def _scanned(self, fragment: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
        scanner = fragment.scanner(
            schema=self._dataset.schema,
            columns=columns,
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
        )
        yield from scanner.to_batches()


def _located(path: str, offset: int, batches: Iterator[pa.RecordBatch]) -> Iterator[TableBatch]:
    while True:
        with _reading(path, offset):
            batch = next(batches, None)
        if batch is None:
            return
        for rows in split_batch(batch):
            yield TableBatch(rows, path, offset)
            offset += rows.num_rows


@contextmanager
def _reading(path: str, offset: int) -> Iterator[None]:
    try:
        yield
    except (*ARROW_ERRORS, OSError) as error:
        raise InputError(f"{path!r} can't be read after row {offset:,}: {error}") from error


def split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts that are no larger than a batch may be on average, and not empty.

    >>> wide = pa.record_batch({"x": [b"0" * BATCH_BYTES] * 3})
    >>> [part.num_rows for part in split_batch(wide)]
    [1, 1, 1]
    """
    rows = int(min(_BATCH_ROWS, batch.num_rows * BATCH_BYTES // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, max(rows, 1)):
        yield batch.slice(start, max(rows, 1))


def _format(name: str) -> Any:
    if name == "tsv":
        from pyarrow.csv import ParseOptions

        return ds.CsvFileFormat(parse_options=ParseOptions(delimiter="\t"))
    return name
