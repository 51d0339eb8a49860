"""Predictor: a batch of columns in, a batch of predictions out. UDFs and servers share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.artifact.signature import Shape
from farandole.data.columns import BadColumn, rows_at_once, to_numpy
from farandole.data.frame import from_series
from farandole.data.ragged_columns import RaggedArray, ragged_rows_at_once
from farandole.errors import InputError
from farandole.inference.varying import as_varying, chunks_of, ragged_column
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Prediction:
    """What a network says about some rows."""

    raw: Array
    """Its output as it is, (rows, outputs)."""
    probability: Array | None
    """Class probabilities, (rows, classes); None for regression."""
    prediction: Array
    """The class number or the value: (rows,), or (rows, outputs) for several values.

    For several answers of yes or no, the probability of each yes."""


class Predictor:
    """Applies a network to batches.

    >>> signature = Signature(features=("x",), shapes=((2,),), dtypes=("float32",),
    ...                       head="softmax", outputs=2)
    >>> predictor = Predictor(nn.Identity(), signature)
    >>> predictor({"x": [[1.0, 3.0], [4.0, 2.0]]}).prediction
    array([1., 0.])
    """

    def __init__(
        self, network: nn.Module, signature: Signature, *, rows_at_once: int = 4096
    ) -> None:
        self.network = network.eval()
        self.signature = signature
        self._rows_at_once = rows_at_once

    def __call__(self, data: Any) -> Prediction:
        """Predict for a pandas DataFrame, an Arrow table or batch, or a mapping of columns."""
        names = self.signature.features
        if isinstance(data, torch.Tensor | np.ndarray | Ragged) and len(names) == 1:
            data = {names[0]: data}
        missing = [name for name in names if name not in _column_names(data)]
        if missing:
            raise InputError(f"There is no column {missing[0]!r} to predict from.")
        columns = [
            as_varying(name, data[name], axes) if axes else _as_column(name, data[name])
            for name, axes in zip(names, self.signature.axes, strict=True)
        ]
        return self.predict_columns(columns)

    def predict_columns(self, columns: Sequence[Any]) -> Prediction:
        """Predict for columns in the order of the signature, as NumPy or Arrow arrays."""
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            raise InputError(f"The columns have different lengths: {lengths}.")
        arrow = [
            ragged_rows_at_once(column, axes) if axes else rows_at_once(column)
            for column, axes in zip(columns, self.signature.axes, strict=True)
            if isinstance(column, pa.Array | pa.ChunkedArray)
        ]
        step = min([*arrow, max(lengths[0], 1)])
        outputs = [
            output
            for start in range(0, lengths[0], step)
            for output in self._outputs([column[start : start + step] for column in columns])
        ]
        nothing = torch.empty(0, self.signature.outputs, dtype=torch.float64)
        raw = torch.cat(outputs).double() if outputs else nothing
        return self._finish(raw if raw.dim() == 2 else raw.reshape(len(raw), -1))

    def _outputs(self, columns: Sequence[Any]) -> Iterator[torch.Tensor]:
        about = self.signature
        arrays = [
            self._checked(name, column, shape, dtype)
            for name, column, shape, dtype in zip(
                about.features, columns, about.shapes, about.dtypes, strict=True
            )
        ]
        for part in chunks_of(arrays, self._rows_at_once):
            yield self._forward([_argument(array[part]) for array in arrays])

    def _forward(self, parts: Sequence[torch.Tensor | Ragged]) -> torch.Tensor:
        with torch.inference_mode():
            output = self.network(*self.signature.arguments(parts))
        first: torch.Tensor = output[0] if isinstance(output, tuple | list) else output
        return first

    def _checked(self, name: str, column: Any, shape: Shape, dtype: str) -> Array | RaggedArray:
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
            raise InputError(f"{bad.rows} Drop or fill them before predicting.") from None
        _same_shape(name, array, fixed, "a row")
        return self._of_kind(name, array, dtype).reshape(len(array), *fixed)

    def _of_kind(self, name: str, array: Array, dtype: str) -> Array:
        """Numbers as the network was trained on them: to it, bytes may be colors.

        Unless it gets all integers as floating-point numbers, whatever their type.
        """
        if self.signature.floated and array.dtype.kind in "biu" and not dtype.startswith("float"):
            return array
        return _of_kind(name, array, dtype)

    def _finish(self, raw: torch.Tensor) -> Prediction:
        head = self.signature.head
        if not self.signature.is_classifier:
            values = (raw.sigmoid() if head == "sigmoids" else raw).numpy()
            return Prediction(values, None, values[:, 0] if values.shape[1] == 1 else values)
        if head == "sigmoid":
            positive = torch.sigmoid(raw[:, :1])
            raw = torch.cat([-raw[:, :1], raw[:, :1]], dim=1)
            probability = torch.cat([1 - positive, positive], dim=1)
        else:
            probability = torch.softmax(raw, 1) if head == "softmax" else raw.exp()
        classes = self._winners(probability).double()
        return Prediction(raw.numpy(), probability.numpy(), classes.numpy())

    def _winners(self, probability: torch.Tensor) -> torch.Tensor:
        if not self.signature.thresholds:
            return probability.argmax(1)
        scaled = probability / torch.tensor(self.signature.thresholds, dtype=probability.dtype)
        # A class with the threshold 0 always wins, unless its probability is 0 as well.
        return scaled.nan_to_num(nan=-1.0, posinf=torch.inf).argmax(1)


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
        return from_series(name, column)
    try:
        return np.asarray(column)
    except ValueError as error:
        raise InputError(f"Column {name!r} can't be read: {error}") from error


def _same_shape(name: str, array: Array, shape: tuple[int, ...], of_what: str) -> None:
    if len(array) and array.shape[1:] != shape:
        raise InputError(
            f"Column {name!r} has shape {array.shape[1:]} {of_what}, but the network was trained "
            f"on {shape}."
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


def _argument(rows: Array | RaggedArray) -> torch.Tensor | Ragged:
    if isinstance(rows, RaggedArray):
        return Ragged(_tensor(rows.values), _tensor(rows.sizes))
    return _tensor(rows)


def _tensor(array: Array) -> torch.Tensor:
    """Arrow's memory is read-only, which tensors can't express: such a chunk is copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
