"""Tables in Ray's object store, one after the other, as one table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from farandole.data.fed_source import FIRST_ROWS, FedSource, first_batch, pieces
from farandole.data.pandas_to_arrow import table_from_pandas
from farandole.data.source import Placement, TableSource, keyed, span_of
from farandole.errors import InputError

_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class RayTables:
    """Tables in Ray's object store, one after the other."""

    references: tuple[Any, ...]
    counts: tuple[int, ...]
    source: FedSource
    is_computed: bool = False

    @classmethod
    def of(cls, references: Sequence[Any], placement: Placement) -> RayTables:
        """Ask for their sizes where they are, and check that their columns agree."""
        import ray

        describe = ray.remote(num_cpus=0)(_described)
        found = ray.get([describe.remote(each) for each in references])
        schemas = [schema for _, schema in found]
        for number, schema in enumerate(schemas):
            _check_columns(schemas[0], schema, number)
        counts = tuple(count for count, _ in found)
        return cls(tuple(references), counts, FedSource(schemas[0], placement))

    def count(self) -> int | None:
        """Of all tables."""
        return sum(self.counts)

    def first_rows(self, names: Sequence[str], *, wait: bool) -> pa.RecordBatch | None:
        """Those of the first table that has any; they are all that comes to this process."""
        import ray

        first = next((n for n, count in enumerate(self.counts) if count), None)
        if first is None:
            return None
        take = ray.remote(num_cpus=0)(_first_rows)
        return first_batch(ray.get(take.remote(self.references[first], list(names))))

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
                table = as_table(ray.get(reference)).select(list(self.names))
                part = table.slice(first - position, last - first)
                yield from self._keyed(part, first, rank, size)
            position += count

    def _keyed(
        self, table: pa.Table, position: int, rank: int, size: int
    ) -> Iterator[pa.RecordBatch]:
        for batch in pieces(table):
            yield from keyed(batch, position, self.placement, rank, size)
            position += batch.num_rows


def references_in(data: Any) -> list[Any]:
    """The references that these are; none, if something else is among them."""
    ray = sys.modules.get("ray")
    if ray is None:
        return []
    found = list(data) if isinstance(data, list | tuple) else [data]
    return found if all(isinstance(each, ray.ObjectRef) for each in found) else []


def put(data: Any) -> list[Any]:
    """A table in the object store, in parts that fit there."""
    import ray

    assert isinstance(data, TableSource)
    table = data.table
    size = max(table.nbytes, 1)
    rows = max(1, min(table.num_rows, table.num_rows * _PART_BYTES // size))
    parts = [table.slice(start, rows) for start in range(0, max(table.num_rows, 1), rows)]
    return [ray.put(part.combine_chunks()) for part in parts]


def _described(table: Any) -> tuple[int, pa.Schema]:
    found = as_table(table)
    return found.num_rows, found.schema


def _first_rows(table: Any, names: list[str]) -> pa.Table:
    """A copy of some rows: a slice might take all others with it."""
    found = as_table(table).select(names)
    return found.take(list(range(min(FIRST_ROWS, found.num_rows))))


def _check_columns(first: pa.Schema, other: pa.Schema, number: int) -> None:
    """Raise unless the names and types are the same, in this order."""
    for ours, theirs in zip_longest(first, other):
        if ours is None or theirs is None or (ours.name, ours.type) != (theirs.name, theirs.type):
            raise InputError(
                "References to tables must have the same columns. Received: "
                f"{_column(ours)} in table 0, where table {number} has {_column(theirs)}. "
                "Cast or rename it before the table is put there."
            )


def _column(field: pa.Field | None) -> str:
    return "no column" if field is None else f"{field.name!r} of {field.type}"


def as_table(data: Any) -> pa.Table:
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
