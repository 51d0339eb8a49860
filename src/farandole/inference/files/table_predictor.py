"""TablePredictor: answers for the rows of tables in files, beside columns of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from farandole.data import check_type
from farandole.errors import FarandoleError, InputError, suggestion
from farandole.inference.application import Application
from farandole.inference.files.base import PredictedRows
from farandole.inference.files.parquet_writer import with_spark_metadata
from farandole.inference.files.tables import TableBatch, Tables
from farandole.inference.files.threads import FirstCallAlone
from farandole.inference.nulls import UnusableInput


class TablePredictor:
    """Answers for the rows of tables, beside columns of these."""

    def __init__(
        self,
        application: Application,
        tables: Tables,
        *,
        features: Sequence[str] | None,
        keep: str | Sequence[str],
        column: str,
    ) -> None:
        self._tables = tables
        self._apply = FirstCallAlone(application)
        self._features = _features(application, tables.schema, features)
        self._kept = _kept(tables.schema, keep)
        if column in self._kept:
            raise InputError(
                f"The column {column!r} exists already. Leave it out with keep=[…], or name "
                "another: column=."
            )
        kept = [tables.schema.field(name) for name in self._kept]
        schema = pa.schema([*kept, pa.field(column, application.arrow_type)])
        self.schema = with_spark_metadata(schema, tables.metadata)

    def count(self) -> int | None:
        """How many rows there will be, if that is known."""
        return self._tables.count()

    def batches(self) -> Iterator[TableBatch]:
        """Rows of the files, with no column that isn't needed."""
        return self._tables.batches(list(dict.fromkeys([*self._kept, *self._features])))

    def check(self) -> None:
        """Whatever was wrong has been raised before."""

    def __call__(self, batch: TableBatch) -> PredictedRows:
        """The rows and their answers."""
        given = [batch.rows.column(name) for name in self._features]
        found = self._answers(given, batch).cast(self.schema.types[-1])
        arrays = [*(batch.rows.column(name) for name in self._kept), found]
        return PredictedRows(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _answers(self, columns: list[pa.Array], batch: TableBatch) -> pa.Array:
        last = batch.offset + batch.rows.num_rows - 1
        rows = f"rows {batch.offset:,} … {last:,}{batch.place}"
        try:
            return self._apply(columns, batch.offset, batch.place)
        except UnusableInput as unusable:
            raise unusable.with_names(self._features) from None
        except InputError as error:
            raise InputError(f"{error} It happened in {rows}.") from error
        except FarandoleError:
            raise
        except Exception as error:
            raise InputError(
                f"The network failed for {rows}: {type(error).__name__}: {error}"
            ) from error


def _features(
    application: Application, schema: pa.Schema, features: Sequence[str] | None
) -> list[str]:
    known = application.signature.features if application.signature else ()
    if isinstance(features, str):
        features = [features]
    names = list(features or known)
    if not names and len(schema.names) == 1:
        names = schema.names
    if not names:
        raise InputError(
            "This network doesn't tell which columns it takes: features=[…]. There are "
            f"{', '.join(schema.names)}."
        )
    axes = application.axes or (0,) * len(known or names)
    if len(axes) != len(names):
        raise InputError(f"The network takes {len(axes)} columns. Received: features={names}")
    for name, count in zip(names, axes, strict=True):
        _check_name(name, schema)
        check_type(name, schema.field(name).type, count)
    return names


def _kept(schema: pa.Schema, keep: str | Sequence[str]) -> list[str]:
    if isinstance(keep, str):
        if keep not in ("all", "none"):
            raise InputError(
                f'keep must be "all", "none" or a list of columns. Received: keep={keep!r}'
            )
        keep = schema.names if keep == "all" else []
    names = list(dict.fromkeys(keep))
    for name in names:
        _check_name(name, schema)
    return names


def _check_name(name: str, schema: pa.Schema) -> None:
    count = schema.names.count(name)
    if count == 0:
        raise InputError(f"There is no column {name!r}. {suggestion(name, schema.names)}")
    if count > 1:
        raise InputError(f"There are {count} columns named {name!r}. Rename all but one.")
