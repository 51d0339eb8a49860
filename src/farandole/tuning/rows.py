"""The rows of a study: brought to the workers once, with the number of each row's fold."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from farandole import _spark
from farandole.api import SharedTable, as_local, share_table
from farandole.data import (
    ParquetSource,
    TableSource,
    fold_of,
    local_source,
    stratified_fold_of,
    with_fold,
)
from farandole.engines import Engine
from farandole.errors import InputError

_FOLD = "fold_of_the_study"


@dataclass(frozen=True)
class StudyRows:
    """Where trials find their rows."""

    shared: SharedTable | None = None
    """For workers that run one trial after the other."""
    data: Any = None
    """For trainings that have workers of their own."""
    schema: pa.Schema | None = None
    fold_column: str | None = None


def share_rows(
    data: Any,
    engine: Engine,
    stack: ExitStack,
    *,
    label: str,
    folds: int | None,
    stratify: str | None,
    seed: int,
    many_workers: bool,
    given_folds: str | None = None,
) -> StudyRows:
    """Bring the rows to where the trials run; `stack` removes them at the end."""
    if data is None:
        return StudyRows()
    if many_workers and _spark.is_dataframe(data):
        if stratify is not None:
            raise InputError(
                "stratified folds of a Spark DataFrame need workers_per_trial=1, where each row's "
                "label is looked at. Or make a column of folds."
            )
        if given_folds is not None:
            known = data.select(given_folds) if given_folds in data.columns else data.limit(0)
            _check_fold_numbers(given_folds, known.toArrow(), folds or 0)
            schema = _without(_spark.arrow_schema(data), given_folds)
            return StudyRows(data=data, schema=schema, fold_column=given_folds)
        frame = data if folds is None else with_fold(data, _FOLD, folds, seed)
        column = None if folds is None else _FOLD
        return StudyRows(data=frame, schema=_spark.arrow_schema(data), fold_column=column)
    table = _table(as_local(data, engine), label)
    schema = table.schema
    if table.num_rows == 0:
        raise InputError("There are no rows to tune on: the data set is empty.")
    column = given_folds
    if given_folds is not None:
        _check_fold_numbers(given_folds, table, folds or 0)
        schema = _without(schema, given_folds)
    elif folds is not None:
        column = _FOLD
        table = table.append_column(column, pa.array(_folds(table, folds, stratify, seed)))
    if many_workers:
        return StudyRows(data=table, schema=schema, fold_column=column)
    return StudyRows(share_table(table, engine, stack), None, schema, column)


def _table(data: Any, label: str) -> pa.Table:
    source = local_source(data, shuffle=True, label=label)
    if isinstance(source, ParquetSource):
        return source.table()
    assert isinstance(source, TableSource)
    return source.table


def _without(schema: pa.Schema, name: str) -> pa.Schema:
    return schema.remove(schema.get_field_index(name))


def _check_fold_numbers(name: str, table: pa.Table, folds: int) -> None:
    """Raise unless each row is in a fold, and each fold has rows."""
    if name not in table.column_names:
        raise InputError(f"fold_column={name!r}, but there is no such column.")
    found = set(table[name].unique().to_pylist())
    if found != set(range(folds)):
        raise InputError(
            f"The fold numbers in {name!r} must be all from 0 to {folds - 1}, with folds={folds}. "
            f"Received: {sorted(found, key=str)[:10]}"
        )


def _folds(
    table: pa.Table, folds: int, stratify: str | None, seed: int
) -> np.ndarray[Any, np.dtype[np.int16]]:
    """The fold of each row."""
    if folds > table.num_rows:
        raise InputError(f"folds={folds} of {table.num_rows} rows: some would be empty.")
    if stratify is None:
        return fold_of(table.num_rows, folds, seed).astype(np.int16)
    if stratify not in table.column_names:
        raise InputError(f"stratified folds need the label, but there is no column {stratify!r}.")
    labels = table[stratify]
    if labels.null_count:
        raise InputError(
            f"stratified folds need a label in each row, but {stratify!r} is null in "
            f"{labels.null_count} of {table.num_rows}. Leave those rows out, or fill them in."
        )
    if pa.types.is_nested(labels.type):
        raise InputError(
            f"stratified folds need one class a row, but {stratify!r} has {labels.type}. Leave "
            "stratified out, or give fold_column=."
        )
    return stratified_fold_of(labels.to_numpy(), folds, seed).astype(np.int16)
