"""Answer: which part of a prediction is wanted, and the column that it becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.arguments import check_integer
from farandole.artifact import Signature
from farandole.errors import InputError, suggestion
from farandole.inference.prediction import Prediction, signature_of

RAW, PROBABILITY, PREDICTION = "raw", "probability", "prediction"
KINDS = (PREDICTION, "class", PROBABILITY, RAW, "topk", "all")
_NAMING = (PREDICTION, "class", "topk", "all")
_LISTS = "array<double>"


@dataclass(frozen=True)
class Answer:
    """What to say of each row.

    >>> Answer("topk", k=2, labels=("cat", "dog")).spark_type(None)
    'array<struct<label: string, probability: double>>'
    """

    kind: str = PREDICTION
    k: int = 5
    """How many classes "topk" gives."""
    labels: tuple[str, ...] = ()
    """The names of classes, in place of numbers."""
    outputs: Mapping[str, int | str] = field(default_factory=dict)
    """Names of a struct's fields → which of several outputs each is, in place of `kind`."""

    @classmethod
    def of(cls, answer: str | Mapping[str, int | str], k: int, labels: Sequence[str]) -> Answer:
        """What a user asks for, checked."""
        check_integer("k", k)
        if isinstance(labels, str):
            raise InputError(f"labels must be a list of names. Received: labels={labels!r}")
        if labels and answer not in _NAMING:
            wanted = ", ".join(map(repr, _NAMING))
            raise InputError(f"labels are for {wanted}, which name classes, not for {answer!r}.")
        if isinstance(answer, Mapping) and answer:
            return cls(outputs=dict(answer))
        if answer not in KINDS:
            raise InputError(
                f"There is no answer {answer!r}. {suggestion(str(answer), KINDS)} A network with "
                'several outputs takes a dict such as {"age": 0, "sex": 1}.'
            )
        assert isinstance(answer, str)
        return cls(answer, k, tuple(map(str, labels)))

    @property
    def parts(self) -> tuple[int | str, ...] | None:
        """Which of a network's outputs are needed; None: those that were trained."""
        return tuple(self.outputs.values()) or None

    def check(self, signature: Signature | None) -> None:
        """Raise if the network can't answer this, as far as that is known."""
        if signature is None or self.outputs:
            return
        if signature.heads:
            self._check_heads(signature)
            return
        if not signature.is_classifier:
            several = signature.head == "sigmoids" and self.kind == PROBABILITY
            if self.labels or (self.kind in ("class", PROBABILITY, "topk") and not several):
                asked = "labels need" if self.labels else f"{self.kind!r} needs"
                raise InputError(f'{asked} a classifier. This network gives "prediction" or "raw".')
            return
        if signature.positions and self.kind == "topk":
            raise InputError('"topk" is for one class a row, not for positions: "probability".')
        classes = signature.num_classes
        if self.labels and len(self.labels) != classes:
            raise InputError(f"There are {len(self.labels)} labels for {classes} classes.")
        if self.kind == "topk" and self.k > classes:
            raise InputError(f"The network has {classes} classes. Received: k={self.k}")

    def _check_heads(self, signature: Signature) -> None:
        if self.labels:
            raise InputError("labels are for a network with one head.")
        for head in signature.heads:
            try:
                self.check(signature_of(signature, head))
            except InputError as error:
                raise InputError(f"The head {head.name!r}: {error}") from None

    def for_head(self, head: str | None) -> Answer:
        """The same of a network of which only this is known: then a prediction is a class."""
        if head is None or self.kind != PREDICTION or self.outputs:
            return self
        return replace(self, kind={"identity": RAW, "sigmoids": PROBABILITY}.get(head, "class"))

    def spark_type(self, signature: Signature | None) -> str:
        """The type of the column, in Spark's words."""
        if self.outputs:
            return f"struct<{', '.join(f'`{name}`: {_LISTS}' for name in self.outputs)}>"
        if signature is not None and signature.heads:
            heads = [(h.name, self.spark_type(signature_of(signature, h))) for h in signature.heads]
            return f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in heads)}>"
        axes = 0 if signature is None else len(signature.positions)
        one = _nested("string" if self.labels else "double", axes)
        lists = _nested(_LISTS, axes)
        if self.kind == "topk":
            named = "label: string" if self.labels else "class: double"
            return f"array<struct<{named}, probability: double>>"
        if self.kind == "class":
            return one
        if self.kind in (RAW, PROBABILITY):
            return lists
        value = self._value_type(signature, one)
        if self.kind == PREDICTION:
            return value
        shown = [RAW, PROBABILITY] if signature is None or signature.is_classifier else []
        parts = [*(f"{name}: {lists}" for name in shown), f"{PREDICTION}: {value}"]
        return f"struct<{', '.join(parts)}>"

    def _value_type(self, signature: Signature | None, one: str) -> str:
        """Of a prediction: without a signature nothing is known but that there are values."""
        if signature is None:
            return one if self.labels or self.kind == "all" else _LISTS
        if signature.is_classifier:
            return one
        return "double" if signature.outputs == 1 else _LISTS

    def to_arrow(self, found: Prediction, signed: bool = True) -> pa.Array:
        """The column; without a signature of the network's own, a prediction is what it gives."""
        if self.outputs:
            return _struct(dict(zip(self.outputs, map(lists, found.outputs), strict=True)))
        if found.heads:
            return _struct({name: self.to_arrow(one) for name, one in found.heads.items()})
        if not signed and len(found):
            self._check_classes(found)
        match self.kind:
            case "topk":
                return self._best(found)
            case "class":
                return self._classes(found)
            case "raw":
                return _by_row(lists(found.raw), found)
            case "probability":
                return _by_row(lists(_probability(found)), found)
            case "all":
                return self._all(found)
        if not signed and not self.labels:
            return lists(found.raw)
        return self._value(found)

    def _check_classes(self, found: Prediction) -> None:
        """Raise if classes are asked of a network that turns out to have none."""
        several = found.classes is None and found.probability is not None
        plain = self.kind == PREDICTION and not self.labels
        if self.kind == RAW or plain or (self.kind == PROBABILITY and several):
            return
        classes = found.classes or 0
        if classes < 2:
            raise InputError(
                f"{self.kind!r} needs a network with a value for each class. This one gives "
                f'{found.raw.shape[1]}. Ask for "raw", or say head="sigmoid" if a single value '
                "tells the second class from the first."
            )
        if self.labels and len(self.labels) != classes:
            raise InputError(f"There are {len(self.labels)} labels for {classes} classes.")

    def _all(self, found: Prediction) -> pa.Array:
        if found.classes is None:
            return _struct({PREDICTION: self._value(found)})
        parts = {
            RAW: _by_row(lists(found.raw), found),
            PROBABILITY: _by_row(lists(_probability(found)), found),
        }
        return _struct({**parts, PREDICTION: self._value(found)})

    def _value(self, found: Prediction) -> pa.Array:
        if found.classes is not None:
            return self._classes(found)
        return pa.array(found.prediction) if found.prediction.ndim == 1 else lists(found.prediction)

    def _classes(self, found: Prediction) -> pa.Array:
        if found.classes is None:
            raise InputError("Only a classifier has classes; this is a regression.")
        named = _in_lists(self._named(found.prediction), found.prediction.shape)
        return _by_row(named, found)

    def _named(self, classes: np.ndarray[Any, Any]) -> pa.Array:
        flat = classes.reshape(-1)
        if not self.labels:
            return pa.array(flat, pa.float64())
        lost = np.isnan(flat)
        places = pa.array(np.where(lost, 0, flat).astype(np.int64), mask=lost)
        return pa.array(self.labels, pa.string()).take(places)

    def _best(self, found: Prediction) -> pa.Array:
        classes, probability = found.best(self.k)
        name = "label" if self.labels else "class"
        entries = _struct(
            {name: self._named(classes), PROBABILITY: pa.array(probability.reshape(-1))}
        )
        return pa.ListArray.from_arrays(_offsets(len(classes), self.k), entries)


def lists(rows: np.ndarray[Any, Any]) -> pa.ListArray:
    """A matrix as a column of lists, without a copy; of more axes, of lists of lists.

    >>> lists(np.array([[1.0, 2.0], [3.0, 4.0]])).to_pylist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return _in_lists(pa.array(np.ascontiguousarray(rows, np.float64).reshape(-1)), rows.shape)


def _by_row(elements: pa.Array, found: Prediction) -> pa.Array:
    """What is said of all positions, as a list for each row where rows differ in length."""
    if found.lengths is None:
        return elements
    ends = np.concatenate([[0], np.cumsum(found.lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), elements)


def _in_lists(flat: pa.Array, shape: Sequence[int]) -> Any:
    """Values as lists of lists, as deep as an array of this shape has axes after the first."""
    for axis in range(len(shape) - 1, 0, -1):
        flat = pa.ListArray.from_arrays(_offsets(math.prod(shape[:axis]), shape[axis]), flat)
    return flat


def _nested(kind: str, axes: int) -> str:
    return "array<" * axes + kind + ">" * axes


def _offsets(count: int, size: int) -> pa.Array:
    return pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(size))


def _probability(found: Prediction) -> np.ndarray[Any, Any]:
    if found.probability is None:
        raise InputError("Only a classifier has probabilities; this is a regression.")
    return found.probability


def _struct(parts: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
