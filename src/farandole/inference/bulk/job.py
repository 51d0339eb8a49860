"""Job: what is to be done for a file's rows or for photos, a task at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from farandole.data import check_type
from farandole.errors import FarandoleError, InputError, suggestion
from farandole.inference.bulk.pipeline import FirstAlone
from farandole.inference.bulk.spark_schema import noted
from farandole.inference.bulk.tables import Piece, Tables
from farandole.inference.nulls import UnusableInput
from farandole.inference.request import Request


@dataclass(frozen=True)
class Done:
    """Rows of the output."""

    rows: pa.RecordBatch
    errors: int = 0
    """How many of them could not be answered."""


class Job(Protocol):
    """Tasks that threads can work on in any order."""

    @property
    def schema(self) -> pa.Schema:
        """Of the output."""
        ...

    def count(self) -> int | None:
        """How many rows there will be, if that is known."""
        ...

    def tasks(self) -> Iterator[Any]:
        """What there is to do, in the order of the output."""
        ...

    def __call__(self, task: Any) -> Done:
        """Do one task."""
        ...

    def check(self) -> None:
        """Raise if what was done is worth nothing."""
        ...


class TableJob:
    """Answers for the rows of tables, beside columns of these."""

    def __init__(
        self,
        request: Request,
        tables: Tables,
        *,
        features: Sequence[str] | None,
        keep: str | Sequence[str],
        column: str,
    ) -> None:
        self._tables = tables
        self._respond = FirstAlone(request.responder())
        self._features = _features(request, tables.schema, features)
        self._kept = _kept(tables.schema, keep)
        if column in self._kept:
            raise InputError(
                f"The column {column!r} exists already. Leave it out with keep=[…], or name "
                "another: column=."
            )
        kept = [tables.schema.field(name) for name in self._kept]
        schema = pa.schema([*kept, pa.field(column, request.returns)])
        self.schema = noted(schema, tables.metadata)

    def count(self) -> int | None:
        """How many rows there will be, if that is known."""
        return self._tables.count()

    def tasks(self) -> Iterator[Piece]:
        """Pieces of the files, with no column that isn't needed."""
        return self._tables.pieces(list(dict.fromkeys([*self._kept, *self._features])))

    def check(self) -> None:
        """Whatever was wrong has been raised before."""

    def __call__(self, task: Piece) -> Done:
        """The rows and their answers."""
        given = [task.rows.column(name) for name in self._features]
        found = self._answers(given, task).cast(self.schema.types[-1])
        arrays = [*(task.rows.column(name) for name in self._kept), found]
        return Done(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _answers(self, columns: list[pa.Array], task: Piece) -> pa.Array:
        last = task.offset + task.rows.num_rows - 1
        rows = f"rows {task.offset:,} … {last:,}{task.place}"
        try:
            return self._respond(columns, task.offset, task.place)
        except UnusableInput as unusable:
            raise unusable.called(self._features) from None
        except InputError as error:
            raise InputError(f"{error} It happened in {rows}.") from error
        except FarandoleError:
            raise
        except Exception as error:
            raise InputError(
                f"The network failed for {rows}: {type(error).__name__}: {error}"
            ) from error


def _features(request: Request, schema: pa.Schema, features: Sequence[str] | None) -> list[str]:
    known = request.signature.features if request.signature else ()
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
    axes = request.axes or (0,) * len(known or names)
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
