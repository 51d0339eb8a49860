"""A signature in the protocol's words: which tensors a model takes, and which it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from farandole.artifact import Head, Shape, Signature
from farandole.inference import Prediction
from farandole.serving.datatypes import BYTES, datatype_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorSpec:
    """Name, datatype and shape of a tensor; -1 where a size varies, as the first always does."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As the protocol's metadata have it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True)
class OutputSpec(TensorSpec):
    """One of a model's outputs, and how it is taken from a prediction."""

    take: Callable[[Prediction], Any]

    @property
    def width(self) -> int:
        """Values of a row; of one of its positions, if rows differ in how many they have."""
        return math.prod(size for size in self.shape if size != -1)

    @property
    def varies(self) -> bool:
        """Whether rows differ in size."""
        return -1 in self.shape[1:]


def input_specs(signature: Signature) -> list[TensorSpec]:
    """The tensors that a model takes: its features.

    >>> about = Signature(features=("x",), shapes=((None, 3),), dtypes=("uint8",), head="softmax",
    ...                   outputs=2)
    >>> input_specs(about)[0].to_json()
    {'name': 'x', 'datatype': 'UINT8', 'shape': [-1, -1, 3]}
    """
    columns = zip(signature.features, signature.dtypes, signature.shapes, strict=True)
    return [
        TensorSpec(name, datatype_of(dtype), (-1, *_sizes(shape))) for name, dtype, shape in columns
    ]


def output_specs(signature: Signature, labels: Sequence[str] = ()) -> list[OutputSpec]:
    """The tensors that it gives: of a classifier prediction, probability and raw values.

    Names of classes are an output too. Several heads have all of it each: `digit.prediction`.

    >>> about = Signature(features=("x",), shapes=((),), dtypes=("float32",), head="softmax",
    ...                   outputs=3)
    >>> [f"{one.name} {list(one.shape)}" for one in output_specs(about)]
    ['prediction [-1]', 'probability [-1, 3]', 'raw [-1, 3]']
    """
    if not signature.heads:
        return _of_head(signature.only_head, "", labels, lambda found: found)
    return [
        spec
        for head in signature.heads
        for spec in _of_head(head, f"{head.name}.", (), itemgetter(head.name))
    ]


def _of_head(
    head: Head, prefix: str, labels: Sequence[str], own: Callable[[Prediction], Prediction]
) -> list[OutputSpec]:
    rows = (-1, *_sizes(head.positions))
    values = (*rows, head.num_classes)
    prediction = _part(own, "prediction")
    if head.kind == "identity" and head.outputs == 1 and not head.positions:
        return [OutputSpec(f"{prefix}prediction", "FP64", rows, prediction)]
    raw = OutputSpec(f"{prefix}raw", "FP64", values, _part(own, "raw"))
    if head.kind == "identity":
        return [OutputSpec(f"{prefix}prediction", "FP64", values, prediction)]
    if head.kind == "sigmoids":
        shape = rows if head.outputs == 1 else values
        return [OutputSpec(f"{prefix}prediction", "FP64", shape, prediction), raw]
    found = [OutputSpec(f"{prefix}prediction", "FP64", rows, prediction)]
    if labels:
        names = np.array([label.encode() for label in labels] + [b""], object)
        found.append(
            OutputSpec(f"{prefix}label", BYTES, rows, lambda one: names[_places(own(one))])
        )
    probability = OutputSpec(f"{prefix}probability", "FP64", values, _part(own, "probability"))
    return [*found, probability, raw]


def _part(own: Callable[[Prediction], Prediction], name: str) -> Callable[[Prediction], Any]:
    return lambda found: getattr(own(found), name)


def _places(found: Prediction) -> Array:
    """The number of each row's class; -1, the last label, which is empty, where that is NaN."""
    return np.nan_to_num(found.prediction, nan=-1.0).astype(np.int64)


def _sizes(shape: Shape) -> tuple[int, ...]:
    return tuple(-1 if size is None else size for size in shape)
