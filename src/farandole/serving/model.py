"""Model: one version of a network as it is served. Arrays of a request in, arrays out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.artifact import Signature
from farandole.data import BadColumn, RaggedArray, most_pixels, pixels_of, to_ragged
from farandole.errors import InputError, suggestion
from farandole.inference import Prediction, Predictor
from farandole.serving.datatypes import BYTES, DATATYPES
from farandole.serving.http_body import LARGE
from farandole.serving.image_text import check_pixels
from farandole.serving.infer_request import Tensor
from farandole.serving.refusal import Refusal, malformed
from farandole.serving.tensor_specs import OutputSpec, TensorSpec, input_specs, output_specs

Array = np.ndarray[Any, Any]
Rows = Array | RaggedArray

MOST_ROWS = 1 << 20
"""Of one request: rows of no values take no bytes."""
LARGEST_ANSWER = 256 << 20
"""Bytes of the outputs of one request: few bytes may ask for many rows of many classes."""
VALUE = 8
"""Bytes of a value in an array."""


class Model:
    """A network that is ready to answer.

    Args:
        name: what requests call it.
        version: a whole number, as text.
        predictor: answers for batches; the same that UDFs and files use.
        labels: names of its classes.
        engine: what computes its answers: see `engines`.
    """

    def __init__(
        self,
        name: str,
        version: str,
        predictor: Predictor,
        labels: Sequence[str] = (),
        engine: str = "eager",
    ) -> None:
        if predictor.signature is None:
            raise InputError(f"Model {name!r} has no signature, so what it takes isn't known.")
        self.name = name
        self.version = version
        self.predictor = predictor
        self.signature: Signature = predictor.signature
        self.engine = engine
        self.labels = tuple(labels)
        self.layouts: dict[bytes, Any] = {}
        """What beginnings of binary requests mean to it (see `asked`)."""
        self.takes_images = self.signature.axes == (2,) and self.signature.dtypes == ("uint8",)
        """Whether its only input is an image of any size: then encoded ones are taken as well."""
        self.inputs = input_specs(self.signature)
        self.outputs = {spec.name: spec for spec in output_specs(self.signature, self.labels)}
        if labels and "label" not in self.outputs:
            raise InputError("labels are for a classifier with one head.")
        if labels and len(labels) != self.signature.num_classes:
            raise InputError(
                f"There are {len(labels)} labels for the {self.signature.num_classes} classes of "
                f"model {name!r}."
            )
        self.few_rows = self._few_rows()
        """So many rows surely have a small answer."""

    def _few_rows(self) -> int:
        specs = self.outputs.values()
        if any(spec.varies for spec in specs):
            return 0
        return LARGE // (VALUE * sum(spec.width for spec in specs))

    def unpacked(self, size: int) -> int:
        """How many bytes a body of so many may stand for: a small file may hold a large image."""
        return max(size, most_pixels()) if self.takes_images else size

    def check_answer(self, columns: Sequence[Rows], names: Iterable[str], value: int) -> None:
        """Raise if these outputs for these rows would be too large, with so many bytes a value."""
        rows = len(columns[0])
        positions = max(
            (len(one.values) for one in columns if isinstance(one, RaggedArray)), default=rows
        )
        specs = [self.outputs[name] for name in names]
        size = value * sum(spec.width * (positions if spec.varies else rows) for spec in specs)
        if size > LARGEST_ANSWER:
            raise Refusal(
                413,
                f"An answer can have {LARGEST_ANSWER:,} bytes, and this one would have {size:,}: "
                "send fewer rows, or ask for fewer outputs.",
            )

    @property
    def is_ragged(self) -> bool:
        """Whether rows may differ in size."""
        return any(self.signature.axes)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the protocol tells of a model, without its versions."""
        return {
            "name": self.name,
            "platform": f"farandole_{self.engine}",
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs.values()],
        }

    def columns(self, inputs: dict[str, Tensor]) -> list[Rows]:
        """The network's columns, of the tensors of a request; a sentence where they don't fit."""
        for name in inputs:
            if not any(spec.name == name for spec in self.inputs):
                names = [spec.name for spec in self.inputs]
                raise malformed(f"There is no input {name!r}. {suggestion(name, names)}")
        columns = [self._column(spec, inputs.get(spec.name)) for spec in self.inputs]
        rows = len(columns[0])
        if any(len(column) != rows for column in columns):
            raise malformed("The inputs have different numbers of rows.")
        return columns

    def _column(self, spec: TensorSpec, tensor: Tensor | None) -> Rows:
        if tensor is None:
            raise malformed(f"Input {spec.name!r} is missing.")
        shape = tensor.shape
        if shape[0] > MOST_ROWS:  # before anything is made for each row
            raise malformed(f"A request can have {MOST_ROWS:,} rows. Received: {shape[0]:,}")
        if tensor.datatype == BYTES:
            return self._images(spec, tensor)
        fits = len(shape) == len(spec.shape) and all(
            wanted in (size, -1) for wanted, size in zip(spec.shape, shape, strict=True)
        )
        if not fits:
            raise malformed(
                f"Input {spec.name!r} has shape {list(shape)}, expected {list(spec.shape)}."
            )
        data = _of_kind(spec, tensor)
        axes = spec.shape[1:].count(-1)
        return RaggedArray.of_array(data, axes) if axes else data

    def _images(self, spec: TensorSpec, tensor: Tensor) -> Rows:
        if not self.takes_images:
            raise malformed(f"Input {spec.name!r} takes {spec.datatype}, not BYTES.")
        if len(tensor.shape) != 1:
            raise malformed(f"Encoded images have the shape [-1]. Received: {list(tensor.shape)}")
        return decoded(spec, tensor.data)

    def answer(self, columns: Sequence[Rows]) -> Prediction:
        """What the network says of these rows."""
        return self.predictor.predict_columns(columns)

    def spec(self, name: str) -> OutputSpec:
        """One of the outputs, by name."""
        found = self.outputs.get(name)
        if found is None:
            raise malformed(f"There is no output {name!r}. {suggestion(name, self.outputs)}")
        return found


def _of_kind(spec: TensorSpec, tensor: Tensor) -> Array:
    """Whole numbers in the network's type, so that all requests of a batch have the same.

    Floating-point numbers stay what they are, since none of them loses anything next to others.
    """
    data: Array = tensor.data
    if tensor.datatype == spec.datatype:
        return data
    floats = (tensor.datatype.startswith("FP"), spec.datatype.startswith("FP"))
    if floats == (True, True):
        return data
    if floats == (True, False):
        raise malformed(f"Input {spec.name!r} takes {spec.datatype}, not {tensor.datatype}.")
    cast = data.astype(DATATYPES[spec.datatype])
    if floats == (False, False) and (cast != data).any():
        raise malformed(f"Input {spec.name!r} holds a number that is no {spec.datatype}.")
    return cast


def decoded(spec: TensorSpec, images: list[bytes]) -> RaggedArray:
    """Encoded images (PNG, JPEG …) as their pixels; gray for a network without colors."""
    check_pixels(sum(map(pixels_of, images)))
    try:
        return to_ragged(spec.name, pa.array(images, pa.binary()), 2, gray=spec.shape[3:] == ())
    except BadColumn:
        raise malformed(
            f"Input {spec.name!r} holds bytes that can't be decoded as an image."
        ) from None
