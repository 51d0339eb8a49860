"""Where rows come from: a table in memory, Parquet files, or a Spark DataFrame.

Every source yields Arrow batches with a key column, and says how keys fall into virtual shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from farandole import _spark
from farandole.data.arrow_file import read_table, table_file
from farandole.data.numpy_to_arrow import is_arrays, table_from_arrays
from farandole.data.order import STRIDE, VIRTUAL_SHARDS, block_of, owned_by, stripe_of
from farandole.data.packing import Group, pack_groups, unpacked
from farandole.data.pandas_to_arrow import table_from_pandas
from farandole.data.parquet import row_groups
from farandole.data.schema import KEY, Columns
from farandole.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Array = np.ndarray[Any, Any]
_BATCH_ROWS, _BATCH_BYTES = 1 << 16, 16 << 20
"""The most that is read, converted and written at once, about: the rest of a file stays there."""


class Placement(Enum):
    """How a key decides on a row's virtual shard."""

    BLOCKS = "contiguous blocks of positions"
    STRIPES = "positions or hashes, dealt round"
    PARTITIONS = "a DataFrame's own partitions and the positions in them, dealt round"

    def shards_of(self, keys: Array, rows: int) -> Array:
        """The virtual shard of each key."""
        return block_of(keys, rows) if self is Placement.BLOCKS else stripe_of(keys)


class Source(Protocol):
    """Rows that each worker can read its share of by itself."""

    @property
    def placement(self) -> Placement:
        """How its keys fall into virtual shards."""
        ...

    def schema(self) -> pa.Schema:
        """The Arrow schema of all columns."""
        ...

    def batches(
        self, rank: int, size: int, names: tuple[str, ...], fed: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one worker, with their keys."""
        ...


@dataclass(frozen=True)
class TableSource:
    """An Arrow table."""

    table: pa.Table
    placement: Placement = Placement.BLOCKS

    def schema(self) -> pa.Schema:
        """The table's own."""
        return self.table.schema

    def count(self) -> int:
        """How many rows there are."""
        return int(self.table.num_rows)

    @contextmanager
    def mapped(self) -> Iterator[MappedSource]:
        """The same rows, in a file that workers of this machine can map."""
        with table_file(self.table) as path:
            yield MappedSource(path, self.placement)

    def batches(
        self, rank: int, size: int, names: tuple[str, ...], fed: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Slices of the table."""
        table = self.table.select(list(names))
        start, stop = span_of(self.placement, rank, size, self.count())
        position = start
        at_once = min(_BATCH_ROWS, _BATCH_BYTES * self.count() // max(table.nbytes, 1))
        for batch in table.slice(start, stop - start).to_batches(max_chunksize=max(at_once, 1)):
            yield from keyed(batch, position, self.placement, rank, size)
            position += batch.num_rows


@dataclass(frozen=True)
class MappedSource:
    """An Arrow table in a file that local workers map, so that none of them copies it."""

    path: str
    placement: Placement = Placement.BLOCKS

    def schema(self) -> pa.Schema:
        """The table's own."""
        return self._table().schema()

    def count(self) -> int:
        """How many rows there are."""
        return self._table().count()

    def batches(
        self, rank: int, size: int, names: tuple[str, ...], fed: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Slices of the mapped table."""
        return self._table().batches(rank, size, names, fed)

    def _table(self) -> TableSource:
        return TableSource(read_table(self.path), self.placement)


@dataclass(frozen=True)
class ParquetSource:
    """Parquet files, read by the workers: only the row groups and columns that they need."""

    path: str
    placement: Placement = Placement.BLOCKS

    def schema(self) -> pa.Schema:
        """That of the first file."""
        return self._dataset().schema

    def count(self) -> int:
        """From the files' footers."""
        return int(self._dataset().count_rows())

    def table(self) -> pa.Table:
        """All rows at once."""
        return self._dataset().to_table()

    def batches(
        self, rank: int, size: int, names: tuple[str, ...], fed: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Row groups that overlap this worker's share, cut to it.

        Rows in front of the share have to be decoded, a batch at a time; those behind it are not.
        """
        start, stop = span_of(self.placement, rank, size, self.count())
        for position, batch in self._overlapping(start, stop, names):
            first, last = max(start, position), min(stop, position + batch.num_rows)
            if first < last:
                part = batch.slice(first - position, last - first)
                yield from keyed(part, first, self.placement, rank, size)

    def _overlapping(
        self, start: int, stop: int, names: tuple[str, ...]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The batches of all row groups that reach into a span, with their positions."""
        dataset, position = self._dataset(), 0
        for fragment in dataset.get_fragments():
            for group in row_groups(fragment):
                first, last = position + group.offset, position + group.offset + group.rows
                if first >= stop or last <= start:
                    continue
                batches = group.batches(
                    dataset.schema, names, _BATCH_ROWS, _BATCH_BYTES, use_threads=True
                )
                for batch in batches:
                    yield first, batch
                    first += batch.num_rows
                    if first >= stop:
                        break
            position += fragment.metadata.num_rows

    def _dataset(self) -> ds.Dataset:
        try:
            return ds.dataset(self.path, format="parquet", partitioning="hive")
        except pa.ArrowInvalid as error:
            raise InputError(f"{self.path!r} can't be read as Parquet: {error}") from error


@dataclass(frozen=True)
class StreamSource:
    """Rows that the engine feeds: already placed and keyed."""

    arrow_schema: pa.Schema
    placement: Placement = Placement.STRIPES

    def schema(self) -> pa.Schema:
        """The DataFrame's, as Python workers see it."""
        return self.arrow_schema

    def batches(
        self, rank: int, size: int, names: tuple[str, ...], fed: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """What the engine feeds, each column by itself again."""
        groups = pack_groups(self.arrow_schema, names)
        for batch in fed:
            *columns, keys = batch.columns
            found = unpacked(groups, columns)
            arrays = [*(found[name] for name in names), keys]
            yield pa.RecordBatch.from_arrays(arrays, [*names, KEY])


def local_source(data: Any, *, shuffle: bool, label: str = "label") -> TableSource | ParquetSource:
    """A source over pandas, Arrow, Parquet or arrays; of a pair, the second is called `label`.

    >>> local_source(pa.table({"x": [1.0, 2.0]}), shuffle=True).count()
    2
    """
    # Blocks let a worker read just its part; but only dealt round can rows be used in their order.
    placement = Placement.BLOCKS if shuffle else Placement.STRIPES
    if isinstance(data, str | os.PathLike):
        path = os.fspath(data)
        if "://" not in path and not os.path.exists(path):
            raise InputError(f"There is no file or folder {path!r}.")
        return ParquetSource(path, placement)
    if isinstance(data, TableSource):
        return replace(data, placement=placement)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if type(data).__module__.startswith("pandas.") and hasattr(data, "columns"):
        data = table_from_pandas(data)
    if is_arrays(data):
        data = table_from_arrays(data, label)
    if not isinstance(data, pa.Table):
        raise InputError(
            "data must be a Spark DataFrame, a pandas DataFrame, an Arrow table, the path of "
            "Parquet files, or arrays: X, (X, y), or by name in a dict. Received: "
            f"{type(data).__name__}"
        )
    return TableSource(data, placement)


def placed_rows(
    frame: DataFrame,
    columns: Columns,
    num_workers: int,
    *,
    shuffle: bool,
    placement: Placement = Placement.STRIPES,
    vectors: Sequence[str] = (),
    floating: str = "float64",
) -> DataFrame:
    """The columns with a key, one partition a worker; of those, `vectors` become arrays.

    The key is a hash of the content, so that partitioning, file layout and retries don't matter;
    where order is to be kept, it is the position in the DataFrame.
    """
    from pyspark.sql import functions as F

    groups = pack_groups(_spark.arrow_schema(frame), columns.names)
    if len(groups) < len(columns.names):
        frame = frame.select(*packed_columns(groups))
        chosen = [F.col(f"column_{number}") for number in range(len(groups))]
    else:
        chosen = [F.col(quote_name(name)) for name in columns.names]
    # Plain names on the way: mapInArrow looks columns up unquoted, so a dot would mean a field.
    plain = [column.alias(f"column_{number}") for number, column in enumerate(chosen)]
    if placement is Placement.PARTITIONS:
        keyed = frame.select(*plain, F.monotonically_increasing_id().alias(KEY))
    elif shuffle:
        keyed = frame.select(*plain, F.xxhash64(*chosen).alias(KEY))
    else:
        keyed = _spark.numbered(frame.select(*plain), KEY)
    placed = keyed.repartitionById(num_workers, _owner(F.col(KEY), num_workers))
    if not vectors:
        return placed
    # Last, so that sparse vectors are moved as such.
    sent = [
        vector_to_array(F.col(f"column_{number}"), floating).alias(f"column_{number}")
        if names[0] in vectors
        else F.col(f"column_{number}")
        for number, names in enumerate(groups)
    ]
    return placed.select(*sent, KEY)


def packed_columns(groups: Sequence[Group]) -> list[Column]:
    """The columns as they travel, under plain names: those of a group as one array."""
    from pyspark.sql import functions as F

    columns = []
    for number, names in enumerate(groups):
        quoted = ", ".join(map(quote_name, names))
        value = F.expr(f"array({quoted})") if len(names) > 1 else F.col(quoted)
        columns.append(value.alias(f"column_{number}"))
    return columns


def vector_to_array(vectors: Column, floating: str) -> Column:
    """Vectors as arrays, null as null: Spark writes them to Arrow many times faster.

    They are in single precision where the network computes in no more than that.
    """
    from pyspark.ml import functions as ML
    from pyspark.sql import functions as F

    single = floating in ("float32", "bfloat16")
    arrays = ML.vector_to_array(vectors, "float32" if single else "float64")
    return F.when(vectors.isNotNull(), arrays)


def _owner(key: Column, size: int) -> Column:
    from pyspark.sql import functions as F

    # The same as order.stripe_of; the inner remainder keeps the product from overflowing.
    shard = F.pmod(key, F.lit(VIRTUAL_SHARDS)) * STRIDE % VIRTUAL_SHARDS
    return F.floor(shard * size / VIRTUAL_SHARDS).cast("int")


def stream_source(frame: DataFrame, placement: Placement = Placement.STRIPES) -> StreamSource:
    """The worker's end of `placed_rows`."""
    return StreamSource(_spark.arrow_schema(frame), placement)


def with_fold(frame: DataFrame, column: str, folds: int, seed: int) -> DataFrame:
    """A DataFrame with a fold for each row, which depends on the row's content alone."""
    from pyspark.sql import functions as F

    content = F.xxhash64(F.lit(seed), *(F.col(quote_name(name)) for name in frame.columns))
    return frame.withColumn(column, F.pmod(content, F.lit(folds)).cast("smallint"))


def with_plain_columns(frame: DataFrame, vectors: Sequence[str]) -> DataFrame:
    """The same columns under plain names (`column_0` …); of those, `vectors` become arrays."""
    from pyspark.sql import functions as F

    found = []
    for number, name in enumerate(frame.columns):
        column = F.col(quote_name(name))
        sent = vector_to_array(column, "float64") if name in vectors else column
        found.append(sent.alias(f"column_{number}"))
    return frame.select(*found)


def quote_name(name: str) -> str:
    """A column's name for Spark, whatever it contains.

    >>> quote_name("a.b")
    '`a.b`'
    """
    return f"`{name.replace('`', '``')}`"


def span_of(placement: Placement, rank: int, size: int, rows: int) -> tuple[int, int]:
    """The positions that may belong to a worker: all of them, unless they come in blocks."""
    if placement is not Placement.BLOCKS:
        return 0, rows
    owned = owned_by(rank, size)
    return -(-owned.start * rows // VIRTUAL_SHARDS), -(-owned.stop * rows // VIRTUAL_SHARDS)


def keyed(
    batch: pa.RecordBatch, position: int, placement: Placement, rank: int, size: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch that begins at a position which belong to a worker, with their keys."""
    keys = np.arange(position, position + batch.num_rows, dtype=np.int64)
    batch = batch.append_column(KEY, pa.array(keys))
    if placement is Placement.STRIPES and size > 1:
        owned = owned_by(rank, size)
        shards = stripe_of(keys)
        batch = batch.filter(pa.array((shards >= owned.start) & (shards < owned.stop)))
    yield batch
