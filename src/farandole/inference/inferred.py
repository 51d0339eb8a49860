"""What a network without a signature takes and gives, read off the first rows it meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from farandole.artifact import Signature
from farandole.artifact.fitting import fitted, floating_of
from farandole.data.columns import BadColumn, to_numpy
from farandole.data.ragged_columns import RaggedArray
from farandole.errors import InputError
from farandole.inference.varying import ragged_column
from farandole.networks.declared import ragged_axes, takes_gray

_LAST_LAYERS: dict[type[nn.Module], str] = {
    nn.Softmax: "probabilities",
    nn.LogSoftmax: "log_softmax",
}


def inferred(
    network: nn.Module,
    columns: Sequence[Any],
    names: Sequence[str] = (),
    *,
    head: str = "softmax",
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> Signature:
    """A signature that fits the network and these columns, NumPy's or Arrow's.

    Args:
        network: what will be given the columns.
        columns: at least one row of each.
        names: how to call them in errors.
        head: how outputs become predictions.
        shapes: what to make of a row of each column, where that isn't its own shape.

    >>> inferred(nn.Linear(2, 3), [np.zeros((1, 2), np.float32)]).outputs
    3
    """
    names = names or [f"argument {number + 1}" for number in range(len(columns))]
    axes = ragged_axes(network) or (0,) * len(columns)
    if len(axes) != len(columns):
        raise InputError(f"The network takes {len(axes)} columns. Received: {len(columns)}")
    rows = [
        _first_row(name, column, count, gray=takes_gray(network))
        for name, column, count in zip(names, columns, axes, strict=True)
    ]
    found = [_shape(row) for row in rows]
    values = [row.values if isinstance(row, RaggedArray) else row for row in rows]
    signature = Signature(
        features=tuple(names),
        shapes=tuple(_reshaped(found, shapes) if shapes else found),
        dtypes=tuple(str(array.dtype) for array in values),
        head=head,
        outputs=1,
        floating=floating_of(network),
    )
    sizes = {
        name: [tuple(row.sizes[0])]
        for name, row in zip(names, rows, strict=True)
        if isinstance(row, RaggedArray)
    }
    taken, outputs = fitted(network, signature, sizes)
    width = outputs[0][0].numel() if hasattr(outputs[0], "numel") else 1
    return replace(taken, outputs=int(width))


def head_of(network: nn.Module) -> str:
    """How outputs become classes, going by the network's last layer.

    >>> head_of(nn.Sequential(nn.Linear(2, 3), nn.LogSoftmax(1)))
    'log_softmax'
    """
    *_, last = network.modules()
    return _LAST_LAYERS.get(type(last), "softmax")


def _first_row(name: str, column: Any, axes: int, *, gray: bool) -> Any:
    first = column[:1]
    try:
        if axes:
            return ragged_column(name, first, axes, gray=gray)
        return first if isinstance(first, np.ndarray) else to_numpy(name, first)
    except BadColumn as bad:
        raise InputError(str(bad.rows)) from None
    except pa.ArrowInvalid as error:
        raise InputError(f"Column {name!r} can't be read: {error}") from error


def _shape(row: Any) -> tuple[int | None, ...]:
    if isinstance(row, RaggedArray):
        return (*(None,) * row.sizes.shape[1], *row.values.shape[1:])
    return tuple(row.shape[1:])


def _reshaped(
    found: Sequence[tuple[int | None, ...]], wanted: Sequence[tuple[int, ...]]
) -> Sequence[tuple[int | None, ...]]:
    if len(wanted) != len(found):
        raise InputError(f"There are {len(wanted)} input_shapes for {len(found)} columns.")
    for own, new in zip(found, wanted, strict=True):
        if None in own or np.prod([n or 0 for n in own]) != np.prod(new):
            raise InputError(f"Rows of the shape {own} can't become {tuple(new)} (input_shapes).")
    return [tuple(shape) for shape in wanted]
