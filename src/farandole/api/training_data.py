"""The data of a training: where its rows are, and which engine's workers get at them how."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from farandole import _spark
from farandole.arguments import as_names
from farandole.data import (
    Columns,
    FirstRows,
    Fold,
    ParquetSource,
    Placement,
    RayData,
    Source,
    TableSource,
    first_rows,
    is_ray_data,
    local_source,
    narrow_vectors,
    ray_data,
    stream_source,
)
from farandole.engines import Engine, InlineEngine, RayEngine
from farandole.engines import resolve as resolve_engine
from farandole.errors import InputError
from farandole.training import NetworkInputs, Recipe


@dataclass(frozen=True)
class TrainingData:
    """Where the rows are, for workers of an engine."""

    engine: Engine
    frame: Any
    """The Spark DataFrame whose rows the engine feeds to workers; None: they read theirs."""
    source: Source
    first: FirstRows | None = None
    """Some rows to try a network with, if they could be had soon."""
    ray: RayData | None = None
    """The rows that Ray has, which its engine feeds to workers; None: there are none there."""

    @classmethod
    def of(
        cls,
        data: Any,
        engine: str | Engine | None,
        recipe: Recipe,
        label: str | Sequence[str] | None = "label",
    ) -> TrainingData:
        """By default a DataFrame stays where it is, as Ray's rows do; all else comes here."""
        runner = resolve_engine((home_of(data) or "local") if engine is None else engine)
        name = next(iter(as_names("label", label)), "label")
        if is_ray_data(data) and runner.name != "ray":
            raise InputError(
                f'The rows are in Ray, where workers of engine="ray" read them. Received: '
                f"engine={runner.name!r}"
            )
        is_read_elsewhere = isinstance(data, str | os.PathLike) or _spark.is_dataframe(data)
        if runner.name == "ray" and not is_read_elsewhere:
            found = _in_ray(data, runner, recipe, name)
            return cls(runner, None, found.source, ray=found)
        frame = _frame_to_feed(data, runner, name)
        return cls(runner, frame, _make_source(frame, data, recipe, name))

    def with_first_rows(self, columns: Columns, *, wait: bool) -> TrainingData:
        """The same with its first rows; Spark may `wait` for them as long as it takes."""
        if self.ray is not None:
            batch = self.ray.first_rows(columns.names, wait=wait)
            return replace(self, first=None if batch is None else FirstRows(batch))
        return replace(self, first=first_rows(self.source, columns.names, self.frame, wait=wait))

    def vectors(self, columns: Columns) -> tuple[str, ...]:
        """The columns of vectors that Spark had better send as arrays."""
        if self.first is not None:
            return self.first.vectors
        return narrow_vectors(self.frame, self.source.schema(), columns.names)

    def inputs(self, columns: Columns) -> NetworkInputs:
        """What a function that makes a network is told."""
        if self.first is None or self.first.batch.num_rows == 0:
            raise InputError("There are no rows to make a network for: the data set is empty.")
        return NetworkInputs.of(self.first.batch, columns.features, self._classes(columns))

    def _classes(self, columns: Columns) -> int | None:
        """How many classes a label has, where pyspark.ml has noted it."""
        if self.frame is None or len(columns.labels) != 1:
            return None
        about = self.frame.schema[columns.labels[0]].metadata.get("ml_attr", {})
        return about.get("num_vals") or len(about.get("vals", ())) or None

    def shared_by(
        self, workers: int, columns: Columns, stack: ExitStack
    ) -> tuple[TrainingData, int]:
        """The same for so many workers, or for fewer where there are fewer rows.

        A table that several processes read becomes a mapped file, which `stack` removes.
        """
        if self.frame is not None:
            return self, workers
        count = _known_count(self.source) if self.ray is None else self.ray.count()
        workers = _limit_workers(count, workers)
        if self.engine.name != "local":
            return self, workers
        if workers == 1:
            return replace(self, engine=InlineEngine()), workers
        source = self.source
        if isinstance(source, TableSource):
            narrow = TableSource(source.table.select(list(columns.names)), source.placement)
            source = stack.enter_context(narrow.mapped())
        return replace(self, source=source), workers


def choose_columns(
    schema: pa.Schema,
    features: str | Sequence[str] | None,
    label: str | Sequence[str] | None,
    weight: str | None,
    validation: float | str | Fold | None,
) -> Columns:
    """The part that each column plays, checked against the schema."""
    fraction = isinstance(validation, float) and 0 < validation < 1
    if not (validation is None or isinstance(validation, str | Fold) or fraction):
        raise InputError(
            "validation must be a fraction between 0 and 1, a column or a Fold. "
            f"Received: {validation!r}"
        )
    labels, names = as_names("label", label), as_names("features", features)
    if weight is not None and not isinstance(weight, str):
        raise InputError(f"weight must be a column's name. Received: weight={weight!r}")
    fold = validation.number if isinstance(validation, Fold) else None
    marker = validation.column if isinstance(validation, Fold) else None
    marker = validation if isinstance(validation, str) else marker
    if features is None:
        taken = {*labels, weight, marker}
        others = tuple(name for name in schema.names if name not in taken)
        names = ("features",) if "features" in schema.names else others
    if not names:
        raise InputError("There is no feature column: every column plays another part.")
    columns = Columns(names, labels, weight, marker, fold)
    columns.check(schema)
    return columns


def _frame_to_feed(data: Any, engine: Engine, label: str) -> Any:
    """The Spark DataFrame whose rows the engine feeds to workers; None: they read them themselves.

    A table goes to Spark's workers as a DataFrame; a DataFrame comes to local ones as a table, and
    to Ray's straight from Spark's tasks.
    """
    if _spark.is_dataframe(data) and engine.name in ("spark", "ray"):
        return data
    if engine.name != "spark" or isinstance(data, str | os.PathLike):
        return None
    table = local_source(data, shuffle=True, label=label)
    assert isinstance(table, TableSource)
    return _spark.require_session().createDataFrame(table.table)


def home_of(data: Any) -> str | None:
    """The engine that is where the rows are; None: any that runs on this machine."""
    if _spark.is_dataframe(data):
        return "spark"
    return "ray" if is_ray_data(data) else None


def _in_ray(data: Any, engine: Engine, recipe: Recipe, label: str) -> RayData:
    """The rows in Ray's object store, or in one of its data sets; a table is put there."""
    if isinstance(engine, RayEngine):
        engine.connect()
    if not is_ray_data(data):
        data = local_source(data, shuffle=recipe.shuffle, label=label)
    found = ray_data(data, shuffle=recipe.shuffle)
    if found.count() == 0:
        raise InputError("There are no rows to train on: the data set is empty.")
    return found


def _make_source(frame: Any, data: Any, recipe: Recipe, label: str) -> Source:
    """Where workers get their rows from."""
    if frame is not None:
        solver = recipe.solver()
        blocks = solver is not None and solver.block_size is not None
        return stream_source(frame, Placement.PARTITIONS if blocks else Placement.STRIPES)
    local = data.toArrow() if _spark.is_dataframe(data) else data
    source = local_source(local, shuffle=recipe.shuffle, label=label)
    if _known_count(source) == 0:
        raise InputError("There are no rows to train on: the data set is empty.")
    return source


def _known_count(source: Source) -> int | None:
    """How many rows there are, where that is known before reading them."""
    return source.count() if isinstance(source, TableSource | ParquetSource) else None


def _limit_workers(rows: int | None, num_workers: int) -> int:
    """No more workers than rows."""
    if rows is None or rows >= num_workers:
        return num_workers
    warnings.warn(
        f"There are {rows} rows for {num_workers} workers: training on {rows}.",
        UserWarning,
        stacklevel=5,
    )
    return rows
