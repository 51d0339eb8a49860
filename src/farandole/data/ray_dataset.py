"""A `ray.data.Dataset`: rows that come to any worker, and go to the one that owns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.data.content_hash import content_keys, has_key
from farandole.data.fed_source import FIRST_ROWS, FedSource, first_batch, pieces
from farandole.data.order import VIRTUAL_SHARDS, Array, stripe_of
from farandole.data.packing import pack_groups
from farandole.data.schema import KEY, is_list
from farandole.data.source import Placement
from farandole.errors import InputError

_ADVICE = (
    "Say its type where the rows are read, such as read_csv(convert_options=…), or cast it by "
    "map_batches."
)
_MOST_TEXT = 2**31 - 1
Router = Callable[[int, pa.RecordBatch], Sequence[pa.RecordBatch]]
"""Gives, of how many ranks there are and a batch, the rows of each rank with their keys."""


@dataclass(frozen=True)
class RayDataset:
    """A `ray.data.Dataset`, which is executed for each run and never held as a whole."""

    dataset: Any = field(repr=False)
    source: FedSource
    is_computed: bool = True

    @classmethod
    def of(cls, dataset: Any, *, shuffle: bool) -> RayDataset:
        """Ask for the types of its columns; where Ray doesn't know them, the first rows tell."""
        if not shuffle:
            raise InputError(
                "shuffle=False needs rows that have positions, and those of a ray.data.Dataset "
                "have none: it gives its blocks as they become ready. Write Parquet files, or "
                "pass references to tables."
            )
        known = getattr(dataset.schema(), "base_schema", None)
        empty = known.empty_table() if isinstance(known, pa.Schema) else _first_table(dataset)
        if empty is None:
            raise InputError("There are no rows to train on: the data set is empty.")
        return cls(dataset, FedSource(_plain_table(empty).schema, Placement.STRIPES))

    def count(self) -> int | None:
        """To count them, all would have to be computed."""
        return None

    def first_rows(self, names: Sequence[str], *, wait: bool) -> pa.RecordBatch | None:
        """Only if they are waited for: Ray may have to read a whole file for them."""
        table = _first_table(self.dataset.select_columns(list(names))) if wait else None
        if table is None:
            return None
        return first_batch(_cast(table, self.source.types(names)))

    def rows(self, names: Sequence[str], size: int) -> DatasetRows:
        """One stream for each worker, which gets whatever block is ready next."""
        streams = self.dataset.select_columns(list(names)).streaming_split(size, equal=False)
        return DatasetRows(tuple(streams), self.source.types(names))


@dataclass(frozen=True)
class DatasetRows:
    """Streams of a data set: rows come to any worker, and go to the one that owns their key."""

    streams: tuple[Any, ...]
    types: pa.Schema
    """Of the columns that are wanted. Ray passes blocks as they are, and some may have others."""

    @property
    def router(self) -> Router:
        """Rows come to any worker."""
        return self.route

    def batches(self, rank: int, size: int) -> Iterator[pa.RecordBatch]:
        """Block after block."""
        options: Any = {"batch_size": None, "batch_format": "pyarrow", "prefetch_batches": 1}
        for table in self.streams[rank].iter_batches(**options):
            yield from pieces(_cast(_plain_table(table), self.types))

    def route(self, size: int, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """By the hash of a row's content, as with Spark."""
        groups = pack_groups(batch.schema, self.types.names)  # the order in which Spark hashes them
        keys = content_keys([batch.column(name) for group in groups for name in group])
        batch = batch.append_column(KEY, pa.array(keys))
        if size == 1:
            return [batch]
        owners = stripe_of(keys) * size // VIRTUAL_SHARDS
        return [batch.filter(pa.array(owners == rank)) for rank in range(size)]


def collected(dataset: Any) -> pa.Table:
    """All rows as one table in this process, in an order that follows from their content.

    Ray gives its blocks as they become ready, and folds and batches go by positions.
    """
    tables = dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    found = [_plain_table(table) for table in tables]
    if not found:
        raise InputError("There are no rows to train on: the data set is empty.")
    table = _joined(found)
    keys = [content_keys(_hashable(batch)) for batch in table.to_batches() if batch.num_rows]
    order = np.argsort(np.concatenate(keys), kind="stable") if keys else np.empty(0, np.int64)
    columns = [_taken(column, order) for column in table.columns]
    return pa.table(columns, table.column_names)


def _hashable(batch: pa.RecordBatch) -> list[pa.Array]:
    """The columns that have a hash; rows that differ in others only stay as they come."""
    found = [column for column in batch.columns if has_key(column.type)]
    return found or [pa.nulls(batch.num_rows, pa.int64())]


def _taken(column: pa.ChunkedArray, order: Array) -> pa.ChunkedArray:
    """Arrow takes from one piece, of which a text of the usual type can hold 2 GB at most."""
    if column.nbytes > _MOST_TEXT and pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    elif column.nbytes > _MOST_TEXT and pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    return column.take(pa.array(order))


def is_dataset(data: Any) -> bool:
    """Whether this is a data set of Ray's."""
    return type(data).__module__.startswith("ray.data.") and hasattr(data, "streaming_split")


def _first_table(dataset: Any) -> pa.Table | None:
    """The first rows of a data set."""
    rows = dataset.limit(FIRST_ROWS).iter_batches(batch_size=None, batch_format="pyarrow")
    found = [_plain_table(table) for table in rows if table.num_rows]
    return _joined(found) if found else None


def _joined(blocks: Sequence[pa.Table]) -> pa.Table:
    """As one table; where types differ, all become the wider one."""
    try:
        return pa.concat_tables(blocks, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(
            "The blocks of the data set have columns of different types, which can't be joined "
            f"({str(error).splitlines()[0]}). {_ADVICE}"
        ) from None


def _plain_table(table: pa.Table) -> pa.Table:
    """The same, with Ray's tensors as lists of one size."""
    columns = [_plain_column(name, table[name]) for name in table.column_names]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _plain_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    shape = getattr(column.type, "shape", None)
    if shape is None:
        raise InputError(
            f"Column {name!r} holds {column.type}, whose rows differ in shape. Make lists of it, "
            "or tensors of one shape."
        )
    whole = column.combine_chunks()
    chunk = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    values = chunk.storage.flatten()
    for size in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, int(size))
    return values


def _cast(table: pa.Table, types: pa.Schema) -> pa.Table:
    """The columns of these names, in these types."""
    columns = [_cast_column(field.name, table[field.name], field.type) for field in types]
    return pa.table(dict(zip(types.names, columns, strict=True)))


def _cast_column(name: str, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    kind = _with_lists_of(column.type, wanted)
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise InputError(
            f"Column {name!r} of the data set is {wanted}, and one of its blocks has "
            f"{column.type}, of which not all can be cast ({str(error).splitlines()[0]}). {_ADVICE}"
        ) from None


def _with_lists_of(found: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The type to cast to: how long lists are is looked at later, by what takes them.

    >>> _with_lists_of(pa.list_(pa.int64(), 3), pa.list_(pa.float32(), 2))
    FixedSizeListType(fixed_size_list<item: float>[3])
    """
    if not (is_list(found) and is_list(wanted)):
        return wanted
    values = _with_lists_of(found.value_type, wanted.value_type)
    if values == found.value_type:
        return found
    if pa.types.is_fixed_size_list(found):
        return pa.list_(values, found.list_size)
    return pa.large_list(values) if pa.types.is_large_list(found) else pa.list_(values)
