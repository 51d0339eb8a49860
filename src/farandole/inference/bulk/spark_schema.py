"""What Spark notes in a Parquet file about its columns, so that Vectors stay Vectors.

Spark believes this note more than the file's own schema. A copy with one column more needs a note
with one more, or Spark would not see it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

_NOTE = b"org.apache.spark.sql.parquet.row.metadata"
_NAMES = {
    pa.float64(): "double",
    pa.float32(): "float",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.string(): "string",
    pa.bool_(): "boolean",
}


def noted(schema: pa.Schema, found: Mapping[bytes, bytes] | None) -> pa.Schema:
    """The schema, whose last field is new, with a note made of the one found beside the input.

    >>> note = {_NOTE: b'{"type": "struct", "fields": [{"name": "x", "type": "double"}]}'}
    >>> made = noted(pa.schema({"x": pa.float64(), "answer": pa.string()}), note).metadata[_NOTE]
    >>> [field["type"] for field in json.loads(made)["fields"]]
    ['double', 'string']
    """
    if not found or _NOTE not in found:
        return schema
    known = {field["name"]: field for field in json.loads(found[_NOTE])["fields"]}
    try:
        *kept, answer = schema
        fields = [*(known.get(field.name) or _field(field) for field in kept), _field(answer)]
    except KeyError:  # a type without a name here: then Spark goes by the file's own schema
        return schema
    return schema.with_metadata({_NOTE: json.dumps({"type": "struct", "fields": fields})})


def _field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}


def _type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(field) for field in kind]}
    return _NAMES[kind]
