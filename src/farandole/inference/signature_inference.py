"""What a network without a signature takes and gives, read off the first rows it meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from farandole.artifact import Shape, Signature, probe_signature
from farandole.data import BadColumn, RaggedArray, to_numpy
from farandole.errors import InputError
from farandole.inference.nulls import UnusableInput
from farandole.inference.ragged_columns import ragged_column
from farandole.networks import dtype_name, floating_dtype, ragged_axes, takes_gray

Layout = tuple[tuple[Shape, str], ...]
"""The shape of a row and the type of its values, for each column."""


@dataclass(frozen=True)
class FirstRows:
    """The first row of each column, and what it looks like."""

    rows: list[Any]
    layout: Layout
    names: tuple[str, ...]

    @classmethod
    def of(cls, network: nn.Module, columns: Sequence[Any], names: Sequence[str] = ()) -> FirstRows:
        """Of columns that have at least one row, NumPy's or Arrow's; `names` if they have any."""
        axes = ragged_axes(network) or (0,) * len(columns)
        if len(axes) != len(columns):
            raise InputError(f"The network takes {len(axes)} columns. Received: {len(columns)}")
        gray, called = takes_gray(network), names_for(columns, names)
        rows = [
            _first_row(name, column, count, gray=gray)
            for name, column, count in zip(called, columns, axes, strict=True)
        ]
        return cls(rows, tuple(map(_layout_of, rows)), called)

    def sizes(self) -> dict[str, list[tuple[int, ...]]]:
        """How large the first rows are, in columns where that varies."""
        return {
            name: [tuple(row.sizes[0].tolist())]
            for name, row in zip(self.names, self.rows, strict=True)
            if isinstance(row, RaggedArray)
        }


def infer_signature(
    network: nn.Module,
    first: FirstRows,
    *,
    head: str | None = None,
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> Signature:
    """A signature that fits the network and columns which begin with these rows.

    Args:
        network: what will be given the columns.
        first: their first rows.
        head: how outputs become predictions; None: as they look.
        shapes: what to make of a row of each column, where that isn't its own shape.

    >>> network = nn.Linear(2, 3)
    >>> infer_signature(network, FirstRows.of(network, [np.zeros((1, 2), np.float32)])).outputs
    3
    """
    found = [shape for shape, _ in first.layout]
    signature = Signature(
        features=first.names,
        shapes=tuple(found if shapes is None else _reshaped(found, shapes)),
        dtypes=tuple(dtype for _, dtype in first.layout),
        head=head or "softmax",
        outputs=1,
        floating=dtype_name(floating_dtype(network)),
    )
    taken, outputs = probe_signature(network, signature, first.sizes())
    first_output = first_tensor(outputs)
    seen = head or guess_head(first_output)
    return replace(taken, head=seen, outputs=first_output[0].numel())


def first_tensor(outputs: Sequence[Any]) -> torch.Tensor:
    """The first output; those of a network that names them come in one mapping."""
    first = outputs[0]
    if isinstance(first, Mapping):
        first = next(iter(first.values()), None)
    return first if isinstance(first, torch.Tensor) else torch.zeros(1, 1)


def unknown_signature(columns: int, head: str) -> Signature:
    """What stands for a signature before there was a row."""
    names = names_for([None] * columns)
    shapes, dtypes = ((),) * columns, ("float32",) * columns
    return Signature(features=names, shapes=shapes, dtypes=dtypes, head=head, outputs=1)


def names_for(columns: Sequence[Any], names: Sequence[str] = ()) -> tuple[str, ...]:
    """What to call columns in errors: by their names, or by their places if there are none.

    >>> names_for([[1], [2]]), names_for([[1]], ["age"])
    (('argument 1', 'argument 2'), ('age',))
    """
    if len(names) == len(columns):
        return tuple(names)
    return tuple(f"argument {number + 1}" for number in range(len(columns)))


def guess_head(output: torch.Tensor) -> str:
    """How outputs become classes, by their looks: probabilities already, their logarithms, or not.

    >>> guess_head(torch.tensor([[0.25, 0.75]])), guess_head(torch.tensor([[0.25, 2.75]]))
    ('probabilities', 'softmax')
    """
    if output.dim() != 2 or output.shape[1] < 2 or not output.is_floating_point():
        return "softmax"
    close = 1e-5 if output.dtype in (torch.float32, torch.float64) else 0.02
    if bool((output >= 0).all()) and _sum_to_one(output, close):
        return "probabilities"
    logarithms = bool((output <= 0).all()) and _sum_to_one(output.double().exp(), close)
    return "log_softmax" if logarithms else "softmax"


def _sum_to_one(output: torch.Tensor, close: float) -> bool:
    sums = output.double().sum(1)
    return torch.allclose(sums, torch.ones_like(sums), 0, close)


_MOST_TRIED = 64


def _first_row(name: str, column: Any, axes: int, *, gray: bool) -> Any:
    first = column[:1]
    try:
        if axes:
            row = ragged_column(name, first, axes, gray=gray)
            return row if len(row.values) else _first_filled(name, column, axes, row, gray)
        return first if isinstance(first, np.ndarray) else to_numpy(name, first)
    except BadColumn as bad:
        raise UnusableInput(bad.rows, 0) from None


def _first_filled(name: str, column: Any, axes: int, row: RaggedArray, gray: bool) -> RaggedArray:
    """One of the first rows that has elements, because only those tell what an element is."""
    for number in range(1, min(len(column), _MOST_TRIED)):
        some = ragged_column(name, column[number : number + 1], axes, gray=gray)
        if len(some.values):
            return some
    return row


def _layout_of(row: Any) -> tuple[Shape, str]:
    if isinstance(row, RaggedArray):
        return (*(None,) * row.sizes.shape[1], *row.values.shape[1:]), str(row.values.dtype)
    return tuple(row.shape[1:]), str(row.dtype)


def _reshaped(found: Sequence[Shape], wanted: Sequence[tuple[int, ...]]) -> Sequence[Shape]:
    if len(wanted) != len(found):
        raise InputError(f"There are {len(wanted)} input_shapes for {len(found)} columns.")
    for own, new in zip(found, wanted, strict=True):
        if None in own or np.prod([n or 0 for n in own]) != np.prod(new):
            raise InputError(f"Rows of the shape {own} can't become {tuple(new)} (input_shapes).")
    return [tuple(shape) for shape in wanted]
