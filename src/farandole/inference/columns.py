"""Columns → the tensors that a network takes, checked against its signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from farandole.artifact import Shape, Signature
from farandole.data import (
    BadColumn,
    RaggedArray,
    array_from_series,
    ragged_rows_at_once,
    rows_at_once,
    to_numpy,
)
from farandole.errors import InputError
from farandole.inference.nulls import UnusableInput
from farandole.inference.ragged_columns import as_ragged, ragged_column
from farandole.networks import ragged_axes
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]
Rows = Array | RaggedArray

_SMALL = 1 << 15
"""Bytes that are copied in less time than it takes to say that they may be read in place."""


class InputColumns:
    """What a network takes: NumPy's or Arrow's columns in, its arguments out.

    With `reshapes`, rows of another shape get that of the signature, if they have as many values.
    """

    def __init__(self, signature: Signature, *, reshapes: bool = False) -> None:
        self.signature = signature
        self.parts = [head.output for head in signature.all_heads]
        """Which of the network's outputs were trained."""
        self._axes = signature.axes
        self.rows_at_once: int | None = None
        """How many rows the network can take, once that is known."""
        self._reshapes = reshapes
        self._plain = [
            (np.dtype(dtype), shape)
            for dtype, shape in zip(signature.dtypes, signature.shapes, strict=True)
            if None not in shape and dtype != "bfloat16"  # which NumPy doesn't know
        ]
        """What arrays look like that need no conversion, if all can come as such."""

    def fit_as_they_are(self, columns: Sequence[Any]) -> bool:
        """Whether these are arrays of exactly the network's types and shapes.

        A server asks for every request, so it's much quicker than finding out by converting them.
        """
        return len(columns) == len(self._plain) and all(
            type(column) is np.ndarray and column.dtype == dtype and column.shape[1:] == shape
            for column, (dtype, shape) in zip(columns, self._plain, strict=True)
        )

    def rows_to_convert(self, columns: Sequence[Any]) -> int:
        """How many rows to convert at once, for what they become to stay small."""
        if len(columns) != len(self.signature.features):
            raise InputError(
                f"The network takes {len(self.signature.features)} columns: "
                f"{', '.join(self.signature.features)}. Received: {len(columns)}"
            )
        arrow = [
            ragged_rows_at_once(column, axes) if axes else rows_at_once(column)
            for column, axes in zip(columns, self._axes, strict=True)
            if isinstance(column, pa.Array | pa.ChunkedArray)
        ]
        return min([*arrow, max(len(columns[0]), 1)])

    def arrays(self, columns: Sequence[Any]) -> list[Rows]:
        """The columns as arrays of the network's shapes and kinds."""
        about = self.signature
        return [
            self._checked(name, column, shape, dtype)
            for name, column, shape, dtype in zip(
                about.features, columns, about.shapes, about.dtypes, strict=True
            )
        ]

    def arguments(
        self, arrays: Sequence[Rows], device: str, *, copies: bool = True
    ) -> list[torch.Tensor | Ragged]:
        """The same as the arguments of `forward`: if that may write to them, of `copies`."""
        tensors = [_argument(array, copies) for array in arrays]
        if device != "cpu":
            tensors = [tensor.to(device) for tensor in tensors]
        return self.signature.arguments(tensors)

    def _checked(self, name: str, column: Any, shape: Shape, dtype: str) -> Rows:
        fixed = tuple(size for size in shape if size is not None)
        axes = len(shape) - len(fixed)
        try:
            if axes:
                rows = ragged_column(name, column, axes, gray=not fixed)
                if not rows.has_element_shape:
                    rows = replace(rows, values=rows.values.reshape(0, *fixed))
                _same_shape(name, rows.values, fixed, "an element")
                return replace(rows, values=self._of_kind(name, rows.values, dtype))
            array = column if isinstance(column, np.ndarray) else to_numpy(name, column)
        except BadColumn as bad:
            row = None if bad.bad is None else int(np.argmax(bad.bad))
            raise UnusableInput(bad.rows, row) from None
        if not self._reshapes:
            _same_shape(name, array, fixed, "a row")
        return self._of_kind(name, array, dtype).reshape(len(array), *fixed)

    def _of_kind(self, name: str, array: Array, dtype: str) -> Array:
        """Numbers as the network was trained on them: to it, bytes may be colors.

        Unless it gets all integers as floating-point numbers, whatever their type.
        """
        if self.signature.floated and array.dtype.kind in "biu" and not dtype.startswith("float"):
            return array
        return _of_kind(name, array, dtype)


def _same_shape(name: str, array: Array, shape: tuple[int, ...], of_what: str) -> None:
    if len(array) and array.shape[1:] != shape:
        raise InputError(
            f"Column {name!r} has shape {array.shape[1:]} {of_what}, but the network takes {shape}."
        )


def _of_kind(name: str, array: Array, dtype: str) -> Array:
    """Exactly the integers that a network was trained on, or any floating-point numbers."""
    if array.dtype.kind not in "biuf":
        raise InputError(f"Column {name!r} holds {array.dtype}, expected {dtype}.")
    integral = not dtype.startswith("float")
    if array.dtype == dtype or (not integral and array.dtype.kind == "f"):
        return array
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    if integral and (cast != array).any():
        example = array[cast != array].flat[0]
        raise InputError(
            f"Column {name!r} holds {example}, but the network was trained on whole numbers "
            f"({dtype})."
        )
    return cast


def _argument(rows: Rows, copies: bool) -> torch.Tensor | Ragged:
    if isinstance(rows, RaggedArray):
        return Ragged(_tensor(rows.values, copies), _tensor(rows.sizes, copies))
    return _tensor(rows, copies)


def _tensor(array: Array, copies: bool) -> torch.Tensor:
    """The array as a tensor. Arrow's memory is for reading, which a tensor has no word for."""
    if array.flags.writeable and not copies and min(array.strides, default=0) >= 0:
        return torch.from_numpy(array)
    if copies or array.nbytes <= _SMALL or min(array.strides) < 0:  # torch knows no negative ones
        return torch.from_numpy(array.copy())
    return torch.from_numpy(np.asarray(_Alias(array)))


class _Alias:
    """The same memory, without the note that it is for reading."""

    def __init__(self, array: Array) -> None:
        self._array = array  # whose memory this is
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def named_columns(data: Any, network: nn.Module, signature: Signature | None) -> list[Any]:
    """The columns that a network takes, of a table or a mapping, as NumPy or Arrow arrays.

    >>> named_columns({"x": [[1.0], [2.0]]}, nn.Linear(1, 1), None)[0].shape
    (2, 1)
    """
    known = signature.features if signature else None
    if known and _is_matrix(data, len(known)):
        data = {name: data[:, number] for number, name in enumerate(known)}
    if isinstance(data, torch.Tensor | np.ndarray | Ragged) and (not known or len(known) == 1):
        data = {known[0] if known else "x": data}
    names = known or tuple(_column_names(data))
    there = set(_column_names(data))
    missing = [name for name in names if name not in there]
    if missing:
        raise InputError(f"There is no column {missing[0]!r} to predict from.")
    axes = signature.axes if signature else ragged_axes(network)
    if axes and len(axes) != len(names):
        raise InputError(f"The network takes {len(axes)} columns. Received: {len(names)}")
    return [
        as_ragged(name, data[name], count) if count else _as_column(name, data[name])
        for name, count in zip(names, axes or (0,) * len(names), strict=True)
    ]


def _is_matrix(data: Any, width: int) -> bool:
    """Whether this is an array whose columns are those that a network of several takes."""
    array = isinstance(data, torch.Tensor | np.ndarray) and width > 1
    return array and data.ndim == 2 and data.shape[1] == width


def _column_names(data: Any) -> Sequence[str]:
    if isinstance(data, pa.Table | pa.RecordBatch):
        return list(data.schema.names)
    return list(data.keys() if isinstance(data, Mapping) else data.columns)


def _as_column(name: str, column: Any) -> Any:
    if isinstance(column, pa.Array | pa.ChunkedArray | np.ndarray):
        return column
    if isinstance(column, torch.Tensor):
        return column.numpy()
    if hasattr(column, "to_numpy"):  # pandas
        return array_from_series(name, column)
    try:
        return np.asarray(column)
    except ValueError as error:
        raise InputError(f"Column {name!r} can't be read: {error}") from error


def may_modify_inputs(network: nn.Module) -> bool:
    """Whether a network may change what it is given: one's own code may, and layers in place do.

    >>> may_modify_inputs(nn.ReLU()), may_modify_inputs(nn.ReLU(inplace=True))
    (False, True)
    """
    return any(
        not type(module).__module__.startswith(_KNOWN) or getattr(module, "inplace", False)
        for module in network.modules()
    )


_KNOWN = (
    *("torch.nn.modules.", "torch.ao.nn.", "farandole.networks.", "farandole.pretrained."),
    *("farandole.keras_models.", "keras."),
)
