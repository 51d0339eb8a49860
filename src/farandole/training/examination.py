"""The last look before step 1: are data, labels and network fit for each other?

Each worker sees only its own rows, so what they found is put together first: every worker
then comes to the same verdict, with counts over the whole data set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch.distributed as dist
from torch import nn

from farandole.artifact import Shape, Signature, fitted, floating_of, only_looking, zeros
from farandole.data import BadRows, Columns, RaggedTensor, Shard, Storage
from farandole.errors import InputError
from farandole.networks import VARYING, ragged_axes, takes_gray, wrapping_advice
from farandole.ragged import Ragged
from farandole.training.losses import Kind, Loss
from farandole.training.step import Batch, Stepper

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
class Report:
    """What one worker knows about its rows."""

    rows: int
    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    problems: list[BadRows]
    sizes: dict[str, Extremes] = field(default_factory=dict)
    """Of each column whose rows differ in size, those of its smallest and its largest row."""

    @classmethod
    def of(cls, shard: Shard) -> Report:
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
        """Whether rows of a column have any: without, one that varies doesn't know its shape."""
        return name not in self.sizes or math.prod(self.sizes[name][1]) > 0


def everybody(value: Any, size: int) -> list[Any]:
    """The values of all workers, in rank order, on all of them."""
    if size == 1:
        return [value]
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, value)
    return gathered


def check_reports(reports: Sequence[Report], varying: str = VARYING) -> Report:
    """One report for the whole data set; raises if any row can't be used.

    Of sizes that differ, it says to do what `varying` says.
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


def _agreed(name: str, reports: Sequence[Report], varying: str) -> Report:
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


def sign(
    network: nn.Module, columns: Columns, report: Report, loss: Loss
) -> tuple[Signature, list[int]]:
    """Find out how the network takes these columns, by giving it rows of zeros.

    Gives the signature, and how many values a row each of the network's outputs has.
    """
    signature = Signature(
        features=columns.features,
        shapes=tuple(report.shapes[name] for name in columns.features),
        dtypes=tuple(report.dtypes[name] for name in columns.features),
        head=loss.head,
        outputs=1,
        labels=columns.labels,
        floating=floating_of(network),
    )
    taken, outputs = fitted(network, signature, report.sizes)
    widths = [int(one.shape[1]) if one.dim() > 1 else 1 for one in outputs]
    head = "sigmoids" if loss.head == "sigmoid" and widths[0] > 1 else loss.head
    return replace(taken, outputs=widths[0], head=head), widths


def zero_rows(report: Report, rows: int = 2) -> Shard:
    """Rows like those of the data set, all zero."""
    shard = Shard({}, np.arange(rows))
    for name, shape in report.shapes.items():
        column = zeros(shape, report.dtypes[name], rows, report.sizes.get(name))
        if isinstance(column, Ragged):
            shard.ragged[name] = RaggedTensor.of(column)
        else:
            shard.columns[name] = column
    return shard


def rehearse(network: nn.Module, stepper: Stepper, batch: Batch, loss: Loss) -> None:
    """Put a batch of zeros through network and loss, and raise if they don't fit each other.

    A callable may dislike zeros for reasons of its own: only what we say of it counts.
    """
    try:
        with only_looking(network):
            stepper.forward(batch)
    except InputError:
        raise
    except Exception as error:
        if loss.callable is None:
            shapes = ", ".join(str(tuple(target.shape[1:])) for target in batch.targets)
            raise InputError(
                "The loss can't take the network's outputs and the labels, which have the shape "
                f"{shapes} a row. It says: {error}"
            ) from error


def storage_for(network: nn.Module, columns: Columns, schema: pa.Schema) -> Storage:
    """How the network wants its columns kept; raises if it wants what they can't be.

    Its attribute `ragged_axes` says for each feature how many leading axes of a row may vary in
    size, and `channels`, where that is 1, that images are to be gray.
    """
    axes = ragged_axes(network) or (0,) * len(columns.features)
    if len(axes) != len(columns.features):
        raise InputError(
            f"The network's ragged_axes are for {len(axes)} feature columns: {axes}. Received "
            f"{len(columns.features)}: {', '.join(columns.features)}"
        )
    if len(set(zip(columns.features, axes, strict=True))) > len(set(columns.features)):
        raise InputError(f"One feature column can't vary in two ways: {columns.features}, {axes}")
    _check_types(network, columns, schema, axes)
    vary = {name: n for name, n in zip(columns.features, axes, strict=True) if n}
    return Storage(floating_of(network), vary, takes_gray(network))


def _check_types(
    network: nn.Module, columns: Columns, schema: pa.Schema, axes: Sequence[int]
) -> None:
    try:
        columns.check(schema, axes)
    except InputError:
        columns.check(schema)  # what no network takes is wrong for another reason
        advice = wrapping_advice(network)
        if not advice:
            raise
        names = ", ".join(columns.features)
        raise InputError(f"The network can't take the feature columns {names}. {advice}") from None


@dataclass(frozen=True)
class LabelReport:
    """What one worker knows about its labels."""

    problems: list[BadRows]
    classes: list[int]
    """The class numbers that occur in the first class label."""


def examine_labels(
    shard: Shard, columns: Columns, loss: Loss, widths: Sequence[int], *, weighted: bool = False
) -> LabelReport:
    """Check labels against the loss and the widths of outputs, and weights against sense.

    Where classes are `weighted`, the first label has to be a class.
    """
    problems: list[BadRows] = []
    classes: list[int] = []
    if len(shard) == 0:
        return LabelReport(problems, classes)
    for number, name in enumerate(columns.labels):
        values = shard.columns[name].numpy()
        kind = loss.kind_of(number)
        width = widths[min(number, len(widths) - 1)]
        problems += _label_problems(name, values, kind, width, weighted and number == 0)
        if number == 0 and kind is not None and kind.head != "identity" and not problems:
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
    name: str, values: np.ndarray[Any, Any], kind: Kind | None, width: int, weighted: bool
) -> list[BadRows]:
    if kind is None or kind.head == "identity":
        return []
    if kind.head == "sigmoid":
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
