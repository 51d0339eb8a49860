"""Prediction: what a network says about some rows, each way to say it worked out when asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from farandole.artifact import Head, Signature
from farandole.errors import InputError, suggestion
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]


class Prediction:
    """What a network says about some rows.

    >>> about = Signature(features=("x",), shapes=((2,),), dtypes=("float32",), head="softmax",
    ...                   outputs=2)
    >>> Prediction([torch.tensor([[0.0, 0.0], [2.0, 1.0]])], about).probability[0]
    array([0.5, 0.5])

    Of a network with several heads, each has a prediction of its own: `found["digit"].prediction`.
    Of a class for each position, arrays are (rows, *positions, classes), predictions (rows,
    *positions).
    """

    def __init__(
        self, outputs: Sequence[Any], signature: Signature, *, by_head: bool = False
    ) -> None:
        self._outputs = list(outputs)
        self._signature = signature
        self._by_head = by_head and bool(signature.heads)

    def __len__(self) -> int:
        return len(self._outputs[0])

    @cached_property
    def heads(self) -> dict[str, Prediction]:
        """What each of several heads says, by its name; of a network with one, nothing."""
        if not self._by_head:
            return {}
        heads = zip(self._signature.heads, self._outputs, strict=True)
        return {
            head.name: Prediction([one], signature_of(self._signature, head)) for head, one in heads
        }

    def __getitem__(self, head: str) -> Prediction:
        if head not in self.heads:
            raise InputError(f"There is no head {head!r}. {suggestion(head, list(self.heads))}")
        return self.heads[head]

    @property
    def lengths(self) -> Array | None:
        """How many positions each row has, where they differ; None where they don't.

        The arrays then hold the positions of all rows, one row after another.
        """
        first = self._outputs[0]
        return first.lengths.numpy() if isinstance(first, Ragged) else None

    @property
    def outputs(self) -> list[Array]:
        """The outputs that were asked for, each (rows, values)."""
        return [_rows_of_values(output).numpy() for output in self._outputs]

    @cached_property
    def raw(self) -> Array:
        """The first output; of a single yes or no, a value for either class."""
        return self._raw.numpy()

    @cached_property
    def probability(self) -> Array | None:
        """Class probabilities, (rows, classes), or those of each yes; None for regression."""
        self._check_axes()
        return None if self._signature.head == "identity" else self._probability.numpy()

    @property
    def classes(self) -> int | None:
        """How many there are to choose from; None if that isn't what the network does."""
        return self._raw.shape[-1] if self._signature.is_classifier else None

    @cached_property
    def prediction(self) -> Array:
        """The class number or the value: (rows,), or (rows, outputs) for several values.

        NaN where the network gives NaN. For several answers of yes or no, the probability of each
        yes."""
        self._check_axes()
        if self._signature.is_classifier:
            winners = self._winners().double()
            if math.isnan(self._raw.sum().item()):  # of infinities it may be as well
                lost = self._raw.isnan().any(-1)  # of which no class is the highest
                winners = winners.masked_fill(lost, torch.nan)
            return winners.numpy()
        values = self.raw if self.probability is None else self.probability
        return values[:, 0] if values.shape[1] == 1 else values

    def best(self, count: int) -> tuple[Array, Array]:
        """The most probable classes, (rows, count), and their probabilities."""
        if not self._signature.is_classifier:
            raise InputError("Only a classifier has most probable classes; this is a regression.")
        self._check_axes()
        if self._signature.positions:
            raise InputError(
                "The most probable classes are for one class a row, not for positions."
            )
        classes = self._probability.shape[1]
        if len(self) == 0:  # whose number of classes may not be known
            return np.zeros((0, count), np.int64), np.zeros((0, count))
        if count > classes:
            raise InputError(f"The network has {classes} classes. Received: k={count}")
        found = self._probability.topk(count, dim=1)
        return found.indices.numpy(), found.values.numpy()

    @cached_property
    def _raw(self) -> torch.Tensor:
        if self._by_head:
            names = ", ".join(self.heads)
            raise InputError(
                f"This network has several heads: {names}. Take one of them, such as "
                f"found[{next(iter(self.heads))!r}].prediction."
            )
        first, head = self._outputs[0], self._signature.head
        if isinstance(first, Ragged):
            return first.values.double()
        assert isinstance(first, torch.Tensor)
        if self._signature.positions:  # the class comes last, as in a row of classes
            by_position: torch.Tensor = first.double().movedim(1, -1)
            return by_position
        first = _rows_of_values(first)
        if head == "probability":
            return torch.cat([1 - first[:, :1], first[:, :1]], dim=1)
        return torch.cat([-first[:, :1], first[:, :1]], dim=1) if head == "sigmoid" else first

    def _check_axes(self) -> None:
        """Raise where it isn't known which of many axes the classes are."""
        if not self._signature.is_classifier or self._signature.positions or self._by_head:
            return
        shape = self._outputs[0].shape[1:]
        if sum(size > 1 for size in shape) > 1:
            raise InputError(
                f"The network gives values of shape {tuple(shape)} a row, and which of the axes "
                'are classes isn\'t known. Ask for "raw" values, or give a model that was trained '
                "here: its signature says so."
            )

    @cached_property
    def _probability(self) -> torch.Tensor:
        head = self._signature.head
        if head == "sigmoid":
            positive = torch.sigmoid(self._raw[:, 1:])
            return torch.cat([1 - positive, positive], dim=1)
        if head == "sigmoids":
            return self._raw.sigmoid()
        if head in ("probabilities", "probability"):
            return self._raw
        return torch.softmax(self._raw, -1) if head == "softmax" else self._raw.exp()

    def _winners(self) -> torch.Tensor:
        thresholds = self._signature.thresholds
        if not thresholds:  # the order of raw values is that of probabilities
            return self._raw.argmax(-1)
        scaled = self._probability / torch.tensor(thresholds, dtype=self._probability.dtype)
        # A class with the threshold 0 always wins, unless its probability is 0 as well.
        return scaled.nan_to_num(nan=-1.0, posinf=torch.inf).argmax(-1)


def signature_of(signature: Signature, head: Head) -> Signature:
    """The signature of a network that has this head alone."""
    return replace(signature.with_heads([replace(head, name="")]), thresholds=())


def no_rows(signature: Signature, parts: Sequence[int | str] | None) -> list[Any]:
    """The outputs for no rows, of the parts that are asked for; None: of all heads."""
    heads = signature.all_heads
    if parts is not None:
        return [torch.empty(0, heads[0].outputs) for _ in parts]
    return [_no_rows_of(one) for one in heads]


def _no_rows_of(head: Head) -> Any:
    if None in head.positions:
        return Ragged(torch.empty(0, head.outputs), torch.empty(0, 1, dtype=torch.int64))
    return torch.empty(0, head.outputs, *(size or 0 for size in head.positions))


def _rows_of_values(output: torch.Tensor) -> torch.Tensor:
    """(rows, values) in double precision: Spark's, and exact for all that a network gives."""
    flat = output if output.dim() == 2 else output.reshape(len(output), -1)
    return flat.double()
