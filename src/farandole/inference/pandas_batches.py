"""pandas in and out of an application: Series, DataFrames, and whole groups of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from farandole.data import array_from_series, table_from_pandas
from farandole.errors import InputError, suggestion
from farandole.inference.application import Application, struct_fields

AGGREGATES = ("mode", "mean", "min", "max", "sum")


def answers_for(
    application: Application, given: Sequence[Any], offset: int = 0, place: str = ""
) -> Any:
    """The answers for Series, or for the one DataFrame that holds them; a struct as a DataFrame."""
    columns = [_as_arrow(number, column) for number, column in enumerate(given)]
    found = application(struct_fields(columns, application.signature), offset, place)
    if pa.types.is_struct(found.type):
        return pa.Table.from_struct_array(found).to_pandas()
    return found.to_pandas()


def answers_for_each(
    application: Application, batches: Iterable[Sequence[Any]], place: str
) -> Iterator[Any]:
    """The answers for one batch after another."""
    offset = 0
    for batch in batches:
        yield answers_for(application, batch, offset, place)
        offset += len(batch[0])


def batches_with_answers(
    application: Application,
    batches: Iterable[pa.RecordBatch],
    features: Sequence[str],
    column: str,
    place: str,
) -> Iterator[pa.RecordBatch]:
    """The rows, and the answers after their own columns."""
    offset = 0
    for batch in batches:
        _check_names(features, batch.schema.names)
        found = application([batch.column(name) for name in features], offset, place)
        yield batch.append_column(column, found)
        offset += batch.num_rows


def frames_with_answers(
    application: Application,
    frames: Iterable[pd.DataFrame],
    features: Sequence[str],
    column: str,
    place: str,
) -> Iterator[pd.DataFrame]:
    """The same for pandas."""
    offset = 0
    for frame in frames:
        yield frame_with_answers(application, frame, features, column, offset, place)
        offset += len(frame)


def frame_with_answers(
    application: Application,
    frame: pd.DataFrame,
    features: Sequence[str],
    column: str,
    offset: int = 0,
    place: str = " of its group",
) -> pd.DataFrame:
    """The same for one DataFrame."""
    if frame.empty:
        return frame.assign(**{column: pd.Series(dtype=object)})
    _check_names(features, list(frame.columns))
    found = application([array_from_series(name, frame[name]) for name in features], offset, place)
    if pa.types.is_struct(found.type):  # which Spark takes as dicts
        return frame.assign(**{column: pd.Series(found.to_pylist(), index=frame.index)})
    return frame.assign(**{column: found.to_pandas().set_axis(frame.index)})


def _check_names(features: Sequence[str], names: Sequence[str]) -> None:
    for name in features:
        if name not in names:
            raise InputError(f"There is no column {name!r}. {suggestion(name, names)}")


def aggregated(found: pd.Series[Any], how: str) -> Any:
    """One value for the answers of a group; None for a group without any."""
    left = found.dropna()
    if left.empty:
        return None
    value = left.mode().iloc[0] if how == "mode" else getattr(left, how)()
    return value if isinstance(value, str) else float(value)


def _as_arrow(number: int, column: Any) -> pa.Array:
    if isinstance(column, pd.DataFrame):
        return table_from_pandas(column).to_struct_array().combine_chunks()
    return array_from_series(f"argument {number + 1}", column)
