"""Predictor: a batch of columns in, a batch of predictions out. UDFs and servers share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from farandole.errors import InputError, suggestion
from farandole.inference.inferred import head_of, inferred
from farandole.inference.nulls import UnusableInput
from farandole.inference.precision import lowered, supported
from farandole.inference.prediction import Prediction
from farandole.inference.sizing import FIRST_ROWS, Gauge, check_batch_size
from farandole.inference.varying import as_varying, chunks_of, ragged_column
from farandole.networks.declared import ragged_axes
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]
Parts = Sequence[int | str]


class Predictor:
    """Applies a network to batches.

    Args:
        network: any module; without a `signature`, what it takes is read off the first rows.
        signature: what it takes and gives.
        batch_size: how many rows it gets at once; "auto": what its layers need little memory for.
        precision: "bfloat16" or "int8"; None for the network's own.
        head: without a signature, how outputs become classes, one of `artifact.signature.HEADS`;
            None: softmax, unless the network ends with one.
        input_shapes: without a signature, the shape of a row of each column, if not its own.
        device: where to compute.

    >>> signature = Signature(features=("x",), shapes=((2,),), dtypes=("float32",),
    ...                       head="softmax", outputs=2)
    >>> predictor = Predictor(nn.Identity(), signature)
    >>> predictor({"x": [[1.0, 3.0], [4.0, 2.0]]}).prediction
    array([1., 0.])
    """

    def __init__(
        self,
        network: nn.Module,
        signature: Signature | None = None,
        *,
        batch_size: int | str = "auto",
        precision: str | None = None,
        head: str | None = None,
        input_shapes: Sequence[tuple[int, ...]] | None = None,
        device: str = "cpu",
    ) -> None:
        check_batch_size(batch_size)
        self.network = lowered(network.eval(), precision).to(device)
        self._signature = signature
        self._precision = precision
        self._head = head or head_of(network)
        self._shapes = input_shapes
        self._device = device
        self._rows_at_once = batch_size if isinstance(batch_size, int) else None

    @property
    def known_signature(self) -> Signature | None:
        """The signature that the network came with, or has been found to have."""
        return self._signature

    @property
    def signature(self) -> Signature:
        """What the network takes and gives; without one of its own, known after the first rows."""
        if self._signature is None:
            raise InputError("This network has no signature before it has seen rows.")
        return self._signature

    def __call__(self, data: Any, parts: Parts = (0,)) -> Prediction:
        """Predict for a pandas DataFrame, an Arrow table or batch, or a mapping of columns."""
        known = self._signature.features if self._signature else None
        if isinstance(data, torch.Tensor | np.ndarray | Ragged) and len(known or "1") == 1:
            data = {known[0] if known else "x": data}
        names = known or tuple(_column_names(data))
        missing = [name for name in names if name not in _column_names(data)]
        if missing:
            raise InputError(f"There is no column {missing[0]!r} to predict from.")
        axes = self._signature.axes if self._signature else ragged_axes(self.network)
        columns = [
            as_varying(name, data[name], count) if count else _as_column(name, data[name])
            for name, count in zip(names, axes or (0,) * len(names), strict=True)
        ]
        return self.predict_columns(columns, parts)

    def predict_columns(self, columns: Sequence[Any], parts: Parts = (0,)) -> Prediction:
        """Predict for columns in the order of the signature, as NumPy or Arrow arrays.

        Of a network with several outputs, `parts` says which are wanted: numbers, or keys.
        """
        rows = same_length(columns)
        if self._signature is None and rows:
            self._signature = inferred(self.network, columns, head=self._head, shapes=self._shapes)
        if self._signature is None:
            nothing = Signature(features=(), shapes=(), dtypes=(), head=self._head, outputs=0)
            return Prediction([torch.empty(0, 0) for _ in parts], nothing)
        if len(columns) != len(self._signature.features):
            raise InputError(
                f"The network takes {len(self._signature.features)} columns: "
                f"{', '.join(self._signature.features)}. Received: {len(columns)}"
            )
        step = self._rows_to_convert(columns)
        found: list[list[torch.Tensor]] = []
        for start in range(0, rows, step):
            try:
                found += self._outputs([column[start : start + step] for column in columns], parts)
            except UnusableInput as unusable:
                raise unusable.at(start, "") from None
        if not found:
            found = [[torch.empty(0, self._signature.outputs) for _ in parts]]
        return Prediction([torch.cat(part) for part in zip(*found, strict=True)], self._signature)

    def _rows_to_convert(self, columns: Sequence[Any]) -> int:
        arrow = [
            ragged_rows_at_once(column, axes) if axes else rows_at_once(column)
            for column, axes in zip(columns, self.signature.axes, strict=True)
            if isinstance(column, pa.Array | pa.ChunkedArray)
        ]
        return min([*arrow, max(len(columns[0]), 1)])

    def _outputs(self, columns: Sequence[Any], parts: Parts) -> Iterator[list[torch.Tensor]]:
        about = self.signature
        arrays = [
            self._checked(name, column, shape, dtype)
            for name, column, shape, dtype in zip(
                about.features, columns, about.shapes, about.dtypes, strict=True
            )
        ]
        if self._rows_at_once is None:
            first = next(chunks_of(arrays, FIRST_ROWS))
            yield self._gauged([array[first] for array in arrays], parts)
            arrays = [array[first.stop :] for array in arrays]
        for part in chunks_of(arrays, self._rows_at_once or FIRST_ROWS):
            yield self._forward([array[part] for array in arrays], parts)

    def _gauged(self, arrays: Sequence[Array | RaggedArray], parts: Parts) -> list[torch.Tensor]:
        with Gauge(self.network) as gauge:
            outputs = self._forward(arrays, parts)
        self._rows_at_once = gauge.fitting(len(arrays[0]))
        return outputs

    def _arguments(self, arrays: Sequence[Array | RaggedArray]) -> list[torch.Tensor | Ragged]:
        tensors = [_argument(array).to(self._device) for array in arrays]
        arguments = self.signature.arguments(tensors)
        if self._precision != "bfloat16":
            return arguments
        return [a.to(torch.bfloat16) if a.is_floating_point() else a for a in arguments]

    def _forward(self, arrays: Sequence[Array | RaggedArray], parts: Parts) -> list[torch.Tensor]:
        with torch.inference_mode(), supported(self._precision):
            output = self.network(*self._arguments(arrays))
        return [chosen_part(output, part).cpu() for part in parts]

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
            row = None if bad.bad is None else int(np.argmax(bad.bad))
            raise UnusableInput(bad.rows, row) from None
        if self._shapes is None:
            _same_shape(name, array, fixed, "a row")
        return self._of_kind(name, array, dtype).reshape(len(array), *fixed)

    def _of_kind(self, name: str, array: Array, dtype: str) -> Array:
        """Numbers as the network was trained on them: to it, bytes may be colors.

        Unless it gets all integers as floating-point numbers, whatever their type.
        """
        if self.signature.floated and array.dtype.kind in "biu" and not dtype.startswith("float"):
            return array
        return _of_kind(name, array, dtype)


def chosen_part(output: Any, part: int | str) -> torch.Tensor:
    """One output of a network that may have several, in a sequence or by name.

    >>> chosen_part({"scores": torch.ones(1), "hidden": torch.zeros(1)}, "hidden").item()
    0.0
    """
    if isinstance(output, torch.Tensor):
        found, names = output if part == 0 else None, ["0"]
    elif isinstance(output, Mapping):
        names = [str(name) for name in output]
        found = list(output.values())[part] if part == 0 else output.get(part)
    else:
        names = [str(number) for number in range(len(output))]
        found = output[part] if isinstance(part, int) and part < len(output) else None
    if not isinstance(found, torch.Tensor):
        raise InputError(f"The network has no output {part!r}. {suggestion(str(part), names)}")
    return found


def same_length(columns: Sequence[Any]) -> int:
    """How many rows all columns have."""
    lengths = [len(column) for column in columns]
    if len(set(lengths)) != 1:
        raise InputError(f"The columns have different lengths: {lengths}.")
    return lengths[0]


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
