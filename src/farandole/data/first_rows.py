"""The first rows of a data set: enough to try a network with, long before all rows are read."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from farandole import _spark
from farandole.data.packing import Group, pack_groups, unpacked
from farandole.data.schema import KEY, is_vector
from farandole.data.source import Source, packed_columns

_COUNT = 32
_PATIENCE = 20.0
"""Seconds for Spark to find them: it may have to compute much before the first of them is there."""


WIDEST_VECTOR = 4096
"""Wider ones may be sparse, and far larger as arrays."""


@dataclass(frozen=True)
class FirstRows:
    """Some rows, with keys, and what they say of all."""

    batch: pa.RecordBatch
    vectors: tuple[str, ...] = ()
    """The columns of vectors that are hardly larger as arrays."""


_kept: WeakKeyDictionary[Any, dict[tuple[str, ...], FirstRows]] = WeakKeyDictionary()
"""The first rows of DataFrames that stay as they are, by their columns."""


def keep_first_rows(frame: Any) -> None:
    """Ask Spark only once for the first rows of a DataFrame that many trainings share.

    It has to be in Spark's cache: of one that isn't, the rows might be others the next time.
    """
    _kept.setdefault(frame, {})


def first_rows(
    source: Source, names: Sequence[str], frame: Any = None, *, wait: bool = False
) -> FirstRows | None:
    """The first rows; None where there are none, or where to find them would take long.

    Args:
        source: where workers get their rows from.
        names: the columns that are wanted.
        frame: the Spark DataFrame whose rows the engine feeds, if it does.
        wait: for as long as it takes.
    """
    if frame is None:
        batches = islice(source.batches(0, 1, tuple(names), iter(())), 1)
        return next((FirstRows(batch.slice(0, _COUNT)) for batch in batches), None)
    known = _kept.get(frame, {})
    found = known.get(tuple(names)) or _first_rows(source, names, frame, wait)
    if found is not None:
        known[tuple(names)] = found
    return found


def _first_rows(source: Source, names: Sequence[str], frame: Any, wait: bool) -> FirstRows | None:
    schema = source.schema()
    groups = pack_groups(schema, names)
    rows = _collected(frame.select(*packed_columns(groups)), None if wait else _PATIENCE)
    if not rows:
        return None
    values = {group: [row[number] for row in rows] for number, group in enumerate(groups)}
    columns = unpacked(groups, [_column(values[group], _sent(schema, group)) for group in groups])
    keys = pa.array(np.arange(len(rows), dtype=np.int64))
    arrays = [*(columns[name] for name in names), keys]
    batch = pa.RecordBatch.from_arrays(arrays, [*names, KEY])
    vectors = [name for name in names if is_vector(schema.field(name).type)]
    return FirstRows(batch, tuple(name for name in vectors if _fits_arrays(values[name,])))


def narrow_vectors(frame: Any, schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of vectors that pyspark.ml has noted to be narrow: known without any row."""
    noted = {
        name: frame.schema[name].metadata.get("ml_attr", {}).get("num_attrs")
        for name in names
        if is_vector(schema.field(name).type)
    }
    return tuple(name for name, size in noted.items() if size and size <= WIDEST_VECTOR)


def _sent(schema: pa.Schema, group: Group) -> pa.DataType:
    """The type in which a group of columns comes."""
    kind = schema.field(group[0]).type
    return kind if len(group) == 1 else pa.list_(kind)


def _fits_arrays(vectors: list[Any]) -> bool:
    """Whether vectors are hardly larger as arrays: they are narrow, or not sparse."""
    known = [vector for vector in vectors if vector is not None]
    return all(len(one) <= WIDEST_VECTOR or not hasattr(one, "indices") for one in known)


def _collected(frame: Any, seconds: float | None) -> list[Any]:
    """The first rows of a DataFrame, if it gives them in time.

    What fails here fails again when all rows are read, and is told then; at once where they are
    waited for as long as it takes.
    """
    session, tag, rows = frame.sparkSession, f"farandole-{secrets.token_hex(8)}", []
    failures: list[Exception] = []

    def collect() -> None:
        try:
            _spark.add_tag(session, tag)
            with _spark.quiet_logs(session):
                rows.extend(frame.take(_COUNT))
        except Exception as error:
            failures.append(error)

    thread = _spark.thread(session, collect)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        if thread.is_alive():
            with suppress(Exception):  # the session may have been stopped meanwhile
                _spark.cancel(session, tag)
    if failures and seconds is None:
        raise failures[0]
    return list(rows)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Python's values of a column, as Arrow has them; vectors as lists."""
    if is_vector(kind):
        return pa.array([value if value is None else value.toArray() for value in values])
    return pa.array([_plain(value) for value in values], kind)


def _plain(value: Any) -> Any:
    """A row of Spark's, as the images of its reader are, as a dict."""
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value
