"""Predictor: a batch of columns in, a batch of predictions out. UDFs and servers share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from farandole.arguments import check_integer_or_auto
from farandole.artifact import OnnxNetwork, Signature
from farandole.errors import InputError
from farandole.inference.columns import InputColumns, Rows, may_modify_inputs, named_columns
from farandole.inference.nulls import UnusableInput
from farandole.inference.precision import lowered, supported
from farandole.inference.prediction import Prediction, no_rows
from farandole.inference.ragged_columns import row_chunks
from farandole.inference.signature_inference import (
    FirstRows,
    Layout,
    infer_signature,
    unknown_signature,
)
from farandole.keras_models import as_network, unwrapped
from farandole.networks import PROBE_ROWS, BatchSizing, chosen_output
from farandole.ragged import Ragged

Parts = Sequence[int | str]


class Predictor:
    """Applies a network to batches.

    Args:
        network: any module or Keras model, which from now on is in eval mode; without a
            `signature`, what it takes is read off the first rows.
        signature: what it takes and gives.
        batch_size: how many rows it gets at once; "auto": what its layers need little memory for.
        precision: "bfloat16" or "int8"; None for the network's own.
        head: without a signature, how outputs become classes, one of `artifact.signature.HEADS`;
            None: softmax, unless they are probabilities already, or their logarithms.
        input_shapes: without a signature, the shape of a row of each column, if not its own.
        names: without a signature, what errors call the columns.
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
        names: Sequence[str] = (),
        device: str = "cpu",
    ) -> None:
        check_integer_or_auto("batch_size", batch_size)
        network = as_network(network)
        check_initialized(network)
        self.module = lowered(network.eval(), precision).to(device)
        if signature is not None and precision == "bfloat16":
            signature = replace(signature, floating=precision)
        self._columns = None if signature is None else InputColumns(signature)
        self._inferred: dict[Layout, InputColumns] = {}
        self._precision = precision
        self._head = head
        self._shapes = input_shapes
        self._names = names
        self._device = device
        self._batch_size = batch_size if isinstance(batch_size, int) else None
        self._copies = may_modify_inputs(self.module)

    @property
    def network(self) -> nn.Module:
        """The network: a torch module, or the Keras model that `module` applies."""
        return unwrapped(self.module)

    @property
    def signature(self) -> Signature | None:
        """What the network takes and gives; None if it came without one."""
        return None if self._columns is None else self._columns.signature

    @property
    def rows_at_once(self) -> int | None:
        """How many rows the network gets at once; None before its first rows have told."""
        return self._batch_size or (self._columns.rows_at_once if self._columns else None)

    @property
    def head(self) -> str:
        """How outputs become classes: as the signature says, or as far as that is known."""
        return self.signature.head if self.signature else self._head or "softmax"

    @property
    def names(self) -> Sequence[str]:
        """What its columns are called, as far as that is known."""
        return self.signature.features if self.signature else self._names

    def __call__(self, data: Any, parts: Parts | None = None) -> Prediction:
        """Predict for a pandas DataFrame, an Arrow table or batch, or a mapping of columns."""
        return self.predict_columns(named_columns(data, self.module, self.signature), parts)

    def predict_columns(self, columns: Sequence[Any], parts: Parts | None = None) -> Prediction:
        """Predict for columns in the order of the signature, as NumPy or Arrow arrays.

        Of a network with several outputs, `parts` says which are wanted: numbers, or keys; None:
        those that were trained.
        """
        rows = same_length(columns)
        inputs = self._columns or self._inferred_columns(columns, rows)
        asked = parts
        if parts is None:
            parts = inputs.parts
        if 0 < rows <= (self.rows_at_once or 0) and inputs.fit_as_they_are(columns):
            outputs = self._forward(inputs, columns, parts)
            return Prediction(outputs, inputs.signature, by_head=asked is None)
        step = inputs.rows_to_convert(columns)
        found: list[list[torch.Tensor]] = []
        for start in range(0, rows, step):
            try:
                arrays = inputs.arrays([column[start : start + step] for column in columns])
            except UnusableInput as unusable:
                raise unusable.at(start, "") from None
            found += self._outputs(inputs, arrays, parts)
        if not found:
            found = [no_rows(inputs.signature, asked)]
        outputs = [_joined(part) for part in zip(*found, strict=True)]
        return Prediction(outputs, inputs.signature, by_head=asked is None)

    def _inferred_columns(self, columns: Sequence[Any], rows: int) -> InputColumns:
        """Of a network without a signature: what it takes when it gets such columns."""
        if rows == 0:
            return InputColumns(unknown_signature(len(columns), self.head))
        first = FirstRows.of(self.module, columns, self._names)
        if first.layout not in self._inferred:
            with supported(self._precision):
                signature = infer_signature(
                    self.module, first, head=self._head, shapes=self._shapes
                )
            self._inferred[first.layout] = InputColumns(
                signature, reshapes=self._shapes is not None
            )
        return self._inferred[first.layout]

    def _outputs(
        self, inputs: InputColumns, arrays: list[Rows], parts: Parts
    ) -> Iterator[list[torch.Tensor]]:
        """The network's outputs for some rows after others, as many at once as it can take."""
        if self._batch_size is None and inputs.rows_at_once is None:
            first = next(row_chunks(arrays, PROBE_ROWS))
            with _BatchSizing(self.module) as sizing:
                outputs = self._forward(inputs, [array[first] for array in arrays], parts)
            inputs.rows_at_once = sizing.rows_that_fit(first.stop)
            yield outputs
            arrays = [array[first.stop :] for array in arrays]
        for chunk in row_chunks(arrays, self._batch_size or inputs.rows_at_once or PROBE_ROWS):
            yield self._forward(inputs, [array[chunk] for array in arrays], parts)

    def _forward(
        self, inputs: InputColumns, arrays: Sequence[Rows], parts: Parts
    ) -> list[torch.Tensor]:
        arguments = inputs.arguments(arrays, self._device, copies=self._copies)
        with torch.inference_mode():
            if self._precision is None:
                output = self.module(*arguments)
            else:
                with supported(self._precision):
                    output = self.module(*arguments)
        found = [chosen_output(output, part) for part in parts]
        if self._device != "cpu":
            found = [one.to("cpu") for one in found]
        rows = len(arrays[0])
        for one in found:
            if (isinstance(one, torch.Tensor) and one.dim() == 0) or len(one) != rows:
                raise InputError(
                    f"The network gives an output of shape {tuple(one.shape)} for {rows} rows. "
                    "Its first axis must be the row."
                )
        return found


def _joined(parts: Sequence[Any]) -> Any:
    """One output for the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    if not isinstance(parts[0], Ragged):
        return torch.cat(list(parts))
    values, sizes = [part.values for part in parts], [part.sizes for part in parts]
    return Ragged(torch.cat(values), torch.cat(sizes))


class _BatchSizing(BatchSizing):
    """Finds how many rows fit in memory by what layers give; into ONNX files it can't look."""

    opaque = (*BatchSizing.opaque, OnnxNetwork)


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
