"""Rows for workers on Ray: tables in its object store, or one of its data sets.

Both are described on the driver, and read by workers. What a worker is told is a `RayRows`, which
Ray itself pickles, so that it knows who still needs its objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from farandole.data.content_hash import content_keys
from farandole.data.order import VIRTUAL_SHARDS, stripe_of
from farandole.data.packing import pack_groups
from farandole.data.pandas_to_arrow import table_from_pandas
from farandole.data.schema import KEY
from farandole.data.source import Placement, TableSource, keyed, span_of
from farandole.errors import InputError

_CHUNK_BYTES, _CHUNK_ROWS = 64 << 20, 1 << 16
_FIRST = 32
Router = Callable[[int, pa.RecordBatch], Sequence[pa.RecordBatch]]
"""Gives, of how many ranks there are and a batch, the rows of each rank with their keys."""


class RayRows(Protocol):
    """What workers of one run read."""

    @property
    def router(self) -> Router | None:
        """Who owns what a worker reads; None: it reads its own only, with keys."""
        ...

    def batches(self, rank: int, size: int) -> Iterator[pa.RecordBatch]:
        """What one worker reads."""
        ...


@dataclass(frozen=True)
class FedSource:
    """Rows that the engine feeds to workers as they are wanted."""

    arrow_schema: pa.Schema
    placement: Placement

    def schema(self) -> pa.Schema:
        """Of all columns."""
        return self.arrow_schema

    def batches(
        self, rank: int, size: int, names: tuple[str, ...], fed: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """What is fed."""
        return fed


class RayData(Protocol):
    """Rows that Ray has, as the driver sees them."""

    @property
    def source(self) -> FedSource:
        """What workers are told of them."""
        ...

    def count(self) -> int | None:
        """How many there are, where that is known without reading them."""
        ...

    def first_rows(self, names: Sequence[str], *, wait: bool) -> pa.RecordBatch | None:
        """Some of them, with keys; None where they would take long, and aren't to be waited for."""
        ...

    def rows(self, names: Sequence[str], size: int) -> RayRows:
        """For so many workers."""
        ...


def is_ray_data(data: Any) -> bool:
    """Whether this is a data set of Ray's, or references to tables in its object store."""
    return _is_dataset(data) or bool(_references(data))


def ray_data(data: Any, *, shuffle: bool) -> RayData:
    """Describe a `ray.data.Dataset`, references to tables, or a table that is put there."""
    if _is_dataset(data):
        return RayDataset.of(data, shuffle=shuffle)
    placement = Placement.BLOCKS if shuffle else Placement.STRIPES
    return RayTables.of(_references(data) or _put(data), placement)


def collected(data: Any) -> pa.Table:
    """All rows as one table in this process."""
    import ray

    if _is_dataset(data):
        tables = data.iter_batches(batch_size=None, batch_format="pyarrow")
        found = [_plain_table(table) for table in tables]
        if not found:
            raise InputError("There are no rows to train on: the data set is empty.")
        return pa.concat_tables(found)
    return pa.concat_tables([_as_table(each) for each in ray.get(_references(data))])


@dataclass(frozen=True)
class RayTables:
    """Tables in Ray's object store, one after the other."""

    references: tuple[Any, ...]
    counts: tuple[int, ...]
    source: FedSource

    @classmethod
    def of(cls, references: Sequence[Any], placement: Placement) -> RayTables:
        """Ask for their sizes where they are, and check that their columns agree."""
        import ray

        describe = ray.remote(num_cpus=0)(_described)
        found = ray.get([describe.remote(each) for each in references])
        schemas = [schema for _, schema in found]
        for schema in schemas[1:]:
            if not schema.equals(schemas[0]):
                raise InputError(
                    "References to tables must have the same columns. Received: "
                    f"{schemas[0].names} and {schema.names}"
                )
        counts = tuple(count for count, _ in found)
        return cls(tuple(references), counts, FedSource(schemas[0], placement))

    def count(self) -> int | None:
        """Of all tables."""
        return sum(self.counts)

    def first_rows(self, names: Sequence[str], *, wait: bool) -> pa.RecordBatch | None:
        """Those of the first table that has any."""
        batches = self.rows(names, 1).batches(0, 1)
        return next((batch.slice(0, _FIRST) for batch in batches), None)

    def rows(self, names: Sequence[str], size: int) -> TableRows:
        """Each worker fetches the tables that its share is in."""
        return TableRows(self.references, self.counts, tuple(names), self.source.placement)


@dataclass(frozen=True)
class TableRows:
    """Tables in the object store, for workers."""

    references: tuple[Any, ...]
    counts: tuple[int, ...]
    names: tuple[str, ...]
    placement: Placement
    router: None = None

    def batches(self, rank: int, size: int) -> Iterator[pa.RecordBatch]:
        """The share of one worker, table after table."""
        import ray

        start, stop = span_of(self.placement, rank, size, sum(self.counts))
        position = 0
        for reference, count in zip(self.references, self.counts, strict=True):
            first, last = max(start, position), min(stop, position + count)
            if first < last:
                table = _as_table(ray.get(reference)).select(list(self.names))
                part = table.slice(first - position, last - first)
                yield from self._keyed(part, first, rank, size)
            position += count

    def _keyed(
        self, table: pa.Table, position: int, rank: int, size: int
    ) -> Iterator[pa.RecordBatch]:
        for batch in _pieces(table):
            yield from keyed(batch, position, self.placement, rank, size)
            position += batch.num_rows


@dataclass(frozen=True)
class RayDataset:
    """A `ray.data.Dataset`, which is executed for each run and never held as a whole."""

    dataset: Any = field(repr=False)
    source: FedSource

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
        batch = next(_pieces(table.select(list(names))))
        return batch.append_column(KEY, pa.array(np.arange(batch.num_rows, dtype=np.int64)))

    def rows(self, names: Sequence[str], size: int) -> DatasetRows:
        """One stream for each worker, which gets whatever block is ready next."""
        streams = self.dataset.select_columns(list(names)).streaming_split(size, equal=False)
        return DatasetRows(tuple(streams), tuple(names))


@dataclass(frozen=True)
class DatasetRows:
    """Streams of a data set: rows come to any worker, and go to the one that owns their key."""

    streams: tuple[Any, ...]
    names: tuple[str, ...]

    @property
    def router(self) -> Router:
        """Rows come to any worker."""
        return self.route

    def batches(self, rank: int, size: int) -> Iterator[pa.RecordBatch]:
        """Block after block."""
        options: Any = {"batch_size": None, "batch_format": "pyarrow", "prefetch_batches": 1}
        for table in self.streams[rank].iter_batches(**options):
            yield from _pieces(_plain_table(table).select(list(self.names)))

    def route(self, size: int, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """By the hash of a row's content, as with Spark."""
        groups = pack_groups(batch.schema, self.names)  # the order in which Spark hashes them
        keys = content_keys([batch.column(name) for group in groups for name in group])
        batch = batch.append_column(KEY, pa.array(keys))
        if size == 1:
            return [batch]
        owners = stripe_of(keys) * size // VIRTUAL_SHARDS
        return [batch.filter(pa.array(owners == rank)) for rank in range(size)]


def _is_dataset(data: Any) -> bool:
    return type(data).__module__.startswith("ray.data.") and hasattr(data, "streaming_split")


def _references(data: Any) -> list[Any]:
    """The references that these are; none, if something else is among them."""
    ray = sys.modules.get("ray")
    if ray is None:
        return []
    found = list(data) if isinstance(data, list | tuple) else [data]
    return found if all(isinstance(each, ray.ObjectRef) for each in found) else []


def _put(data: Any) -> list[Any]:
    """A table in the object store, in parts that fit there."""
    import ray

    assert isinstance(data, TableSource)
    table = data.table
    size = max(table.nbytes, 1)
    rows = max(1, min(table.num_rows, table.num_rows * _CHUNK_BYTES // size))
    parts = [table.slice(start, rows) for start in range(0, max(table.num_rows, 1), rows)]
    return [ray.put(part.combine_chunks()) for part in parts]


def _described(table: Any) -> tuple[int, pa.Schema]:
    found = _as_table(table)
    return found.num_rows, found.schema


def _as_table(data: Any) -> pa.Table:
    """What a reference refers to, as Arrow has it."""
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if type(data).__module__.startswith("pandas.") and hasattr(data, "columns"):
        return table_from_pandas(data)
    if isinstance(data, pa.Table):
        return data
    raise InputError(
        "A reference must be to a pandas DataFrame or an Arrow table. Received: one to a "
        f"{type(data).__name__}"
    )


def _first_table(dataset: Any) -> pa.Table | None:
    """The first rows of a data set."""
    rows = dataset.limit(_FIRST).iter_batches(batch_size=None, batch_format="pyarrow")
    found = [_plain_table(table) for table in rows if table.num_rows]
    return pa.concat_tables(found) if found else None


def _pieces(table: pa.Table) -> Iterator[pa.RecordBatch]:
    rows = max(1, min(_CHUNK_ROWS, table.num_rows * (16 << 20) // max(table.nbytes, 1)))
    yield from table.combine_chunks().to_batches(max_chunksize=rows)


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
