"""What workers report about their rows and labels before the first step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farandole.artifact import Head, Shape, zero_column
from farandole.data import BadRows, Columns, RaggedColumn, Shard
from farandole.errors import InputError
from farandole.networks import VARYING
from farandole.ragged import Ragged
from farandole.training.losses import Loss

Extremes = tuple[tuple[int, ...], tuple[int, ...]]


class UnusableRows(InputError):
    """Rows that can't be trained on, counted over the whole data set."""

    def __init__(self, problems: tuple[BadRows, ...], varying: str = VARYING) -> None:
        super().__init__(problems, varying)
        self.problems = problems
        self.varying = varying
        """What to do if sizes are meant to vary."""

    def __str__(self) -> str:
        lines = [str(bad) for bad in self.problems]
        advice = "Drop, fill or repair those rows first."
        if any(bad.kind == "size" for bad in self.problems):
            advice = f"{advice} {self.varying}"
        return "\n".join([*lines, advice])


@dataclass(frozen=True)
class RowReport:
    """What one worker knows about its rows."""

    rows: int
    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    problems: list[BadRows]
    sizes: dict[str, Extremes] = field(default_factory=dict)
    """Of each column whose rows differ in size, those of its smallest and its largest row."""

    @classmethod
    def of(cls, shard: Shard) -> RowReport:
        """The facts of a shard; shapes are known only where there are rows."""
        if len(shard) == 0 or shard.problems:
            return cls(len(shard), {}, {}, shard.problems)
        tensors = {**shard.columns, **{name: one.values for name, one in shard.ragged.items()}}
        return cls(
            len(shard),
            {name: shard.shape(name) for name in tensors},
            {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
            shard.problems,
            {name: column.extremes() for name, column in shard.ragged.items()},
        )

    def has_elements(self, name: str) -> bool:
        """Whether a column has elements: without, one of varying sizes has no known shape."""
        return name not in self.sizes or math.prod(self.sizes[name][1]) > 0


def merge_reports(reports: Sequence[RowReport], varying: str = VARYING) -> RowReport:
    """One report for the whole data set; raises if any row can't be used.

    Where sizes differ, the error ends with the advice `varying`.
    """
    rows = sum(report.rows for report in reports)
    if rows == 0:
        raise InputError("There are no rows to train on: the data set is empty.")
    raise_for([bad for report in reports for bad in report.problems], varying)
    filled = [report for report in reports if report.rows]
    facts = {name: _agreed(name, filled, varying) for name in filled[0].shapes}
    return replace(
        filled[0],
        rows=rows,
        shapes={name: report.shapes[name] for name, report in facts.items()},
        dtypes={name: report.dtypes[name] for name, report in facts.items()},
        sizes={name: _extremes([r.sizes[name] for r in filled]) for name in filled[0].sizes},
    )


def _agreed(name: str, reports: Sequence[RowReport], varying: str) -> RowReport:
    """A report that knows the shape of a column, which all that know it have to share."""
    knowing = [report for report in reports if report.has_elements(name)] or reports[:1]
    wanted = knowing[0].shapes[name]
    for report in knowing[1:]:
        shape = report.shapes[name]
        if shape != wanted:
            advice = "" if None in shape else f" {varying}"
            raise InputError(
                f"Column {name!r}: {report.rows:,} rows have another size (shape {shape} where "
                f"other rows have {wanted}).{advice}"
            )
    return knowing[0]


def _extremes(found: Sequence[Extremes]) -> Extremes:
    return (
        min((smallest for smallest, _ in found), key=math.prod),
        max((largest for _, largest in found), key=math.prod),
    )


def raise_for(problems: Sequence[BadRows], varying: str = VARYING) -> None:
    """Raise with the problems of all workers, added up by column and kind."""
    merged: dict[tuple[str, str], BadRows] = {}
    for bad in problems:
        known = merged.get((bad.column, bad.problem))
        count = bad.count + (known.count if known else 0)
        merged[bad.column, bad.problem] = replace(known or bad, count=count)
    if merged:
        raise UnusableRows(tuple(merged.values()), varying)


def even_labels(report: RowReport, columns: Columns) -> list[str]:
    """Labels that could vary in length, and don't."""
    sizes = {name: report.sizes[name] for name in columns.labels if name in report.sizes}
    return [name for name, (smallest, largest) in sizes.items() if smallest == largest]


def with_fixed_labels(shard: Shard, report: RowReport, labels: Sequence[str]) -> RowReport:
    """These labels as plain tensors: in the shard, and so told."""
    shapes, sizes = dict(report.shapes), dict(report.sizes)
    for name in labels:
        largest = sizes[name][1]
        shapes[name] = (*largest, *report.shapes[name][len(largest) :])
        del sizes[name]
        if name in shard.ragged:
            values = shard.ragged.pop(name).values
            shard.columns[name] = values.reshape(len(shard), *largest, *values.shape[1:])
    return replace(report, shapes=shapes, sizes=sizes)


def zero_rows(report: RowReport, rows: int = 2) -> Shard:
    """Rows like those of the data set, all zero."""
    shard = Shard({}, np.arange(rows))
    for name, shape in report.shapes.items():
        column = zero_column(shape, report.dtypes[name], rows, report.sizes.get(name))
        if isinstance(column, Ragged):
            shard.ragged[name] = RaggedColumn.of(column)
        else:
            shard.columns[name] = column
    return shard


@dataclass(frozen=True)
class LabelReport:
    """What one worker knows about its labels."""

    problems: list[BadRows]
    classes: list[int]
    """The class numbers that occur in the first class label."""


def check_labels(
    shard: Shard, columns: Columns, loss: Loss, *, weighted: bool = False
) -> LabelReport:
    """Check labels against the loss and its heads, and that weights aren't negative.

    Where classes are `weighted`, the first label has to be a class.
    """
    problems: list[BadRows] = []
    classes: list[int] = []
    if len(shard) == 0:
        return LabelReport(problems, classes)
    for number, name in enumerate(columns.labels):
        given = shard.ragged[name].values if name in shard.ragged else shard.columns[name]
        values = given.numpy()
        head = next((one.head for one in loss.heads if one.target == number), loss.heads[0].head)
        kind = loss.label_kind(number, inferred=True)
        problems += _label_problems(name, values, kind, head, weighted and number == 0)
        if number == 0 and kind not in (None, "identity") and not problems:
            classes = _classes(values)
    if columns.weight is not None:
        weights = shard.columns[columns.weight].numpy()
        problems += _rows_where(
            columns.weight, weights, weights < 0, "a negative weight", "negative"
        )
    return LabelReport(problems, classes)


def _classes(values: np.ndarray[Any, Any]) -> list[int]:
    """The class numbers that occur; none where labels are probabilities."""
    found = np.unique(values)[:1000]
    return found.astype(int).tolist() if (found == np.floor(found)).all() else []


def _label_problems(
    name: str, values: np.ndarray[Any, Any], kind: str | None, head: Head, weighted: bool
) -> list[BadRows]:
    width = head.outputs
    if kind in (None, "identity"):
        return []
    if kind in ("sigmoid", "sigmoids", "probability"):
        if weighted:
            between = (values != 0) & (values != 1)
            return _rows_where(name, values, between, "no class, 0 or 1, as class_weights need")
        outside = (values < 0) | (values > 1)
        return _rows_where(name, values, outside, "a label outside of 0 … 1")
    if values.ndim > 1 and values.dtype.kind == "f":  # probabilities of classes
        return []
    fractional = values != np.floor(values)
    found = _rows_where(
        name,
        values,
        fractional,
        "a fractional label, expected class numbers (to learn other numbers: loss='mse')",
        kind="fraction",
    )
    outside = ~fractional & ((values < 0) | (values >= width))
    expected = f"a label outside of 0 … {width - 1}, the network's outputs"
    if width == 1:
        expected += " (one for each class is needed; to learn numbers: loss='mse')"
    return found + _rows_where(name, values, outside, expected, kind="outside")


def _rows_where(
    name: str,
    values: np.ndarray[Any, Any],
    bad: np.ndarray[Any, Any],
    problem: str,
    kind: str = "",
) -> list[BadRows]:
    rows = bad.reshape(len(bad), -1).any(axis=1)
    if not rows.any():
        return []
    return [BadRows(name, problem, int(rows.sum()), f"{values[bad].flat[0]:g}", kind)]
