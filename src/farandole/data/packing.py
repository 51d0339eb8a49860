"""Many columns of plain numbers as one array on their way through Spark.

Spark plans, compiles and writes each column by itself: with thousands of them that takes minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from farandole.data.schema import is_number

FEWEST = 64
"""Of so many columns of one type and more, an array is made."""

Group = tuple[str, ...]


def pack_groups(schema: pa.Schema, names: Sequence[str]) -> list[Group]:
    """The columns that travel together, in the order in which they do; most travel alone.

    >>> schema = pa.schema([("a", pa.int64()), ("b", pa.float32()), ("c", pa.int64())])
    >>> pack_groups(schema, ["a", "b", "c"])
    [('a',), ('b',), ('c',)]
    """
    by_type: dict[pa.DataType, list[str]] = {}
    for name in names:
        by_type.setdefault(schema.field(name).type, []).append(name)
    together = {kind for kind, same in by_type.items() if is_number(kind) and len(same) >= FEWEST}
    groups: list[Group] = []
    for name in names:
        kind = schema.field(name).type
        if kind not in together:
            groups.append((name,))
        elif by_type[kind][0] == name:
            groups.append(tuple(by_type[kind]))
    return groups


def unpacked(groups: Sequence[Group], columns: Sequence[Any]) -> dict[str, Any]:
    """The columns themselves, by name.

    >>> unpacked([("a", "b"), ("c",)], [pa.array([[1, 2], [3, None]]), pa.array([5, 6])])["b"]
    <pyarrow.lib.Int64Array object at ...>
    [
      2,
      null
    ]
    """
    found: dict[str, Any] = {}
    for names, column in zip(groups, columns, strict=True):
        if len(names) == 1:
            found[names[0]] = column
        else:
            for place, name in enumerate(names):
                found[name] = pc.list_element(column, place)
    return found
