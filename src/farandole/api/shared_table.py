"""A table that all workers can read: mapped on one machine, brought to the others by Spark."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa

from farandole import _spark
from farandole.api.run import print_output
from farandole.data import (
    KEY,
    ParquetSource,
    TableSource,
    collected,
    is_ray_data,
    local_source,
    narrow_vectors,
    read_table,
    table_file,
    with_plain_columns,
    write_table,
)
from farandole.engines import Engine, RayEngine, SparkEngine, Task
from farandole.errors import InputError
from farandole.world import World


@dataclass(frozen=True)
class SharedTable:
    """A file that every worker can read the rows from."""

    path: str
    parquet: bool = False
    distributed: bool = False
    """Whether Spark copies it to every worker (`addFile`, `addArtifact`)."""

    def table(self) -> pa.Table:
        """All rows; an Arrow file is memory-mapped, so that the workers of a host share it."""
        if self.parquet:
            return ParquetSource(self.path).table()
        path = _spark.distributed_path(self.path) if self.distributed else self.path
        return read_table(path)


def share_table(data: Any, engine: Engine, stack: ExitStack) -> SharedTable | None:
    """Write the rows to a file that every worker can read."""
    if data is None:
        return None
    source = local_source(as_local(data, engine), shuffle=True)
    if isinstance(source, ParquetSource):
        local = "://" not in source.path
        return SharedTable(os.path.abspath(source.path) if local else source.path, parquet=True)
    assert isinstance(source, TableSource)
    if isinstance(engine, RayEngine) and not engine.is_on_this_machine():
        raise InputError(
            "On a Ray of several machines, a table can't be brought to workers that need all of "
            "it. Write it as Parquet files where all of them can read, and give the path; or run "
            'on this machine alone: engine="local".'
        )
    if isinstance(engine, SparkEngine) and not _workers_see_local_files(engine.session):
        path = _write_named_by_content(source)
        _spark.distribute(engine.session, path)
        return SharedTable(os.path.basename(path), distributed=True)
    return SharedTable(stack.enter_context(table_file(source.table)))


def as_local(data: Any, engine: Engine) -> Any:
    """A Spark DataFrame, or what Ray has, as a table; all else as it is."""
    if is_ray_data(data):
        return collected(data)
    if not _spark.is_dataframe(data):
        return data
    vectors = narrow_vectors(data, _spark.arrow_schema(data), data.columns)
    frame = with_plain_columns(data, vectors)
    is_classic = not _spark.is_connect(data.sparkSession)
    if isinstance(engine, SparkEngine) and is_classic and _spark.has_positions(data):
        # Over the link of workers and driver: all of it at once may be too much for Spark's JVM.
        frame, workers = _spark.numbered(frame, KEY), engine.settled_slots(1)
        parts: list[pa.Table] = engine.run(
            Task(partial(_read_rows, _spark.arrow_schema(frame)), _give_rows),
            workers,
            rows=frame.repartition(workers),
            timeout=60.0,
            on_message=print_output,
        )
        table = pa.concat_tables(parts).sort_by(KEY).drop_columns([KEY])
    else:
        table = frame.toArrow()
    return table.rename_columns(data.columns)


def _read_rows(
    schema: pa.Schema, rank: int, size: int, batches: Iterator[pa.RecordBatch]
) -> pa.Table:
    """All rows that Spark feeds to a worker."""
    found = list(batches)
    return pa.Table.from_batches(found, found[0].schema if found else schema)


def _give_rows(world: World, table: pa.Table) -> pa.Table:
    """They are the result."""
    return table


def _workers_see_local_files(session: Any) -> bool:
    """Whether the session's workers run on this machine, with its files."""
    return _spark.is_local(session) and not _spark.is_connect(session)


def _write_named_by_content(source: TableSource) -> str:
    """A file of the rows, named by its content, that stays until this process ends.

    Spark fetches it again for every executor that comes later, and knows it by its name.
    """
    folder = _process_folder()
    path = os.path.join(folder, "rows.arrow")
    write_table(source.table, path)
    with open(path, "rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()
    named = os.path.join(folder, f"farandole-{name}.arrow")
    os.replace(path, named)
    return named


@cache
def _process_folder() -> str:
    """A folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="farandole-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
