"""A Parquet file that appears when it is complete, with what Spark wants to find in it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from farandole.data import ARROW_ERRORS
from farandole.errors import InputError

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_NAMES = {
    pa.float64(): "double",
    pa.float32(): "float",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.string(): "string",
    pa.bool_(): "boolean",
}


class AtomicParquetWriter:
    """Batches of rows on their way to a file, gathered into row groups of some megabytes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "out.parquet"
    >>> with AtomicParquetWriter(file, pa.schema({"x": pa.int64()})) as writer:
    ...     writer.write(pa.record_batch({"x": [1, 2]}))
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

    def __enter__(self) -> AtomicParquetWriter:
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


def with_spark_metadata(schema: pa.Schema, found: Mapping[bytes, bytes] | None) -> pa.Schema:
    """The schema, whose last field is new, with Spark's note about columns, as the input has it.

    Spark believes this note more than the file's own schema: it keeps Vectors Vectors. A copy with
    one column more needs a note with one more, or Spark would not see it.

    >>> note = {_SPARK_SCHEMA: b'{"type": "struct", "fields": [{"name": "x", "type": "double"}]}'}
    >>> schema = pa.schema({"x": pa.float64(), "answer": pa.string()})
    >>> made = with_spark_metadata(schema, note).metadata[_SPARK_SCHEMA]
    >>> [field["type"] for field in json.loads(made)["fields"]]
    ['double', 'string']
    """
    if not found or _SPARK_SCHEMA not in found:
        return schema
    known = {field["name"]: field for field in json.loads(found[_SPARK_SCHEMA])["fields"]}
    try:
        *kept, answer = schema
        fields = [*(known.get(field.name) or _field(field) for field in kept), _field(answer)]
    except KeyError:  # a type without a name here: then Spark goes by the file's own schema
        return schema
    return schema.with_metadata({_SPARK_SCHEMA: json.dumps({"type": "struct", "fields": fields})})


def _field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}


def _type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(field) for field in kind]}
    return _SPARK_NAMES[kind]
