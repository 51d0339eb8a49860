"""A Parquet file that appears under its name when it is complete, or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from farandole.data import ARROW_ERRORS
from farandole.errors import InputError

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20


class Draft:
    """Batches of rows on their way to a file, gathered into row groups of some megabytes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "out.parquet"
    >>> with Draft(file, pa.schema({"x": pa.int64()})) as draft:
    ...     draft.write(pa.record_batch({"x": [1, 2]}))
    ...     file.exists()
    False
    >>> pq.read_table(file).num_rows
    2
    """

    def __init__(self, target: Path, schema: pa.Schema) -> None:
        self._target = target
        self._path = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def __enter__(self) -> Draft:
        # Of the numbers in lists nobody asks the smallest and largest, and they take a while.
        simple = [field.name for field in self._schema if not pa.types.is_nested(field.type)]
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(
                self._path, self._schema, compression="snappy", write_statistics=simple
            )
        except (*ARROW_ERRORS, OSError) as error:
            if self._target.parent.is_dir():
                self._path.unlink(missing_ok=True)
            raise InputError(f"{str(self._target)!r} can't be written: {error}") from error
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; they reach the disk when a row group is full."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._bytes >= _GROUP_BYTES or self._rows >= _GROUP_ROWS:
            self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
            self._file.close()
            if error is None:
                os.replace(self._path, self._target)
        finally:
            self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._rows, self._bytes = [], 0, 0
        if table.num_rows:
            self._file.write_table(table, row_group_size=table.num_rows)
