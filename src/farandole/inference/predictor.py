"""Predictor: a batch of columns in, a batch of predictions out. UDFs and servers share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from farandole.arguments import check_integer_or_auto
from farandole.artifact import Signature
from farandole.data import from_series
from farandole.errors import InputError, suggestion
from farandole.inference.habits import FIRST_ROWS, Gauge, may_write
from farandole.inference.inferred import FirstRows, Layout, inferred, unknown
from farandole.inference.intake import Intake, Rows
from farandole.inference.nulls import UnusableInput
from farandole.inference.precision import lowered, supported
from farandole.inference.prediction import Prediction
from farandole.inference.varying import as_varying, chunks_of
from farandole.networks import ragged_axes
from farandole.ragged import Ragged

Parts = Sequence[int | str]


class Predictor:
    """Applies a network to batches.

    Args:
        network: any module, which from now on is in eval mode; without a `signature`, what it
            takes is read off the first rows.
        signature: what it takes and gives.
        batch_size: how many rows it gets at once; "auto": what its layers need little memory for.
        precision: "bfloat16" or "int8"; None for the network's own.
        head: without a signature, how outputs become classes, one of `artifact.signature.HEADS`;
            None: softmax, unless they are probabilities already, or their logarithms.
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
        check_integer_or_auto("batch_size", batch_size)
        check_initialized(network)
        self.network = lowered(network.eval(), precision).to(device)
        if signature is not None and precision == "bfloat16":
            signature = replace(signature, floating=precision)
        self._own = None if signature is None else Intake(signature)
        self._found: dict[Layout, Intake] = {}
        self._precision = precision
        self._head = head
        self._shapes = input_shapes
        self._device = device
        self._batch_size = batch_size if isinstance(batch_size, int) else None
        self._copies = may_write(self.network)

    @property
    def signature(self) -> Signature | None:
        """What the network takes and gives; None if it came without one."""
        return None if self._own is None else self._own.signature

    def __call__(self, data: Any, parts: Parts = (0,)) -> Prediction:
        """Predict for a pandas DataFrame, an Arrow table or batch, or a mapping of columns."""
        known = self.signature.features if self.signature else None
        if isinstance(data, torch.Tensor | np.ndarray | Ragged) and (not known or len(known) == 1):
            data = {known[0] if known else "x": data}
        names = known or tuple(_column_names(data))
        missing = [name for name in names if name not in _column_names(data)]
        if missing:
            raise InputError(f"There is no column {missing[0]!r} to predict from.")
        axes = self.signature.axes if self.signature else ragged_axes(self.network)
        if axes and len(axes) != len(names):
            raise InputError(f"The network takes {len(axes)} columns. Received: {len(names)}")
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
        intake = self._own or self._intake_for(columns, rows)
        step = intake.rows_to_convert(columns)
        found: list[list[torch.Tensor]] = []
        for start in range(0, rows, step):
            try:
                arrays = intake.arrays([column[start : start + step] for column in columns])
            except UnusableInput as unusable:
                raise unusable.at(start, "") from None
            found += self._outputs(intake, arrays, parts)
        if not found:
            found = [[torch.empty(0, intake.signature.outputs) for _ in parts]]
        outputs = [torch.cat(part) for part in zip(*found, strict=True)]
        return Prediction(outputs, intake.signature)

    def _intake_for(self, columns: Sequence[Any], rows: int) -> Intake:
        """Of a network without a signature: what it takes when it gets such columns."""
        if rows == 0:
            return Intake(unknown(len(columns), self._head or "softmax"))
        first = FirstRows.of(self.network, columns)
        if first.layout not in self._found:
            with supported(self._precision):
                signature = inferred(self.network, first, head=self._head, shapes=self._shapes)
            self._found[first.layout] = Intake(signature, reshapes=self._shapes is not None)
        return self._found[first.layout]

    def _outputs(
        self, intake: Intake, arrays: list[Rows], parts: Parts
    ) -> Iterator[list[torch.Tensor]]:
        if self._batch_size is None and intake.rows_at_once is None:
            first = next(chunks_of(arrays, FIRST_ROWS))
            with Gauge(self.network) as gauge:
                outputs = self._forward(intake, [array[first] for array in arrays], parts)
            intake.rows_at_once = gauge.fitting(first.stop)
            yield outputs
            arrays = [array[first.stop :] for array in arrays]
        for part in chunks_of(arrays, self._batch_size or intake.rows_at_once or FIRST_ROWS):
            yield self._forward(intake, [array[part] for array in arrays], parts)

    def _forward(self, intake: Intake, arrays: Sequence[Rows], parts: Parts) -> list[torch.Tensor]:
        arguments = intake.arguments(arrays, self._device, copies=self._copies)
        with torch.inference_mode(), supported(self._precision):
            output = self.network(*arguments)
        found = [chosen_part(output, part).cpu() for part in parts]
        rows = len(arrays[0])
        for one in found:
            if one.dim() == 0 or len(one) != rows:
                raise InputError(
                    f"The network gives an output of shape {tuple(one.shape)} for {rows} rows. "
                    "Its first axis must be the row."
                )
        return found


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


def check_initialized(network: nn.Module) -> None:
    """Raise if there are layers that wait for their first rows to have weights at all."""
    for name, parameter in network.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise InputError(
                f"The network's {name!r} has no values yet, because its layer is lazy. Train it, "
                "load its weights, or call it once."
            )


def same_length(columns: Sequence[Any]) -> int:
    """How many rows all columns have."""
    if not columns:
        raise InputError("There are no columns to predict from: name those of the features.")
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
