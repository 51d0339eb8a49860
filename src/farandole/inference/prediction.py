"""Prediction: what a network says about some rows, each way to say it worked out when asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from farandole.artifact import Signature
from farandole.errors import InputError

Array = np.ndarray[Any, Any]


class Prediction:
    """What a network says about some rows.

    >>> about = Signature(features=("x",), shapes=((2,),), dtypes=("float32",), head="softmax",
    ...                   outputs=2)
    >>> Prediction([torch.tensor([[0.0, 0.0], [2.0, 1.0]])], about).probability[0]
    array([0.5, 0.5])
    """

    def __init__(self, outputs: Sequence[torch.Tensor], signature: Signature) -> None:
        self._outputs = [_rows_of_values(output) for output in outputs]
        self._signature = signature

    def __len__(self) -> int:
        return len(self._outputs[0])

    @property
    def outputs(self) -> list[Array]:
        """The outputs that were asked for, each (rows, values)."""
        return [output.numpy() for output in self._outputs]

    @cached_property
    def raw(self) -> Array:
        """The first output; of a single yes or no, a value for either class."""
        return self._raw.numpy()

    @cached_property
    def probability(self) -> Array | None:
        """Class probabilities, (rows, classes), or those of each yes; None for regression."""
        return None if self._signature.head == "identity" else self._probability.numpy()

    @property
    def classes(self) -> int | None:
        """How many there are to choose from; None if that isn't what the network does."""
        return self._raw.shape[1] if self._signature.is_classifier else None

    @cached_property
    def prediction(self) -> Array:
        """The class number or the value: (rows,), or (rows, outputs) for several values.

        NaN where the network gives NaN. For several answers of yes or no, the probability of each
        yes."""
        if self._signature.is_classifier:
            lost = self._raw.isnan().any(1)  # of which no class is the highest
            return self._winners().double().masked_fill(lost, torch.nan).numpy()
        values = self.raw if self.probability is None else self.probability
        return values[:, 0] if values.shape[1] == 1 else values

    def best(self, count: int) -> tuple[Array, Array]:
        """The most probable classes, (rows, count), and their probabilities."""
        if not self._signature.is_classifier:
            raise InputError("Only a classifier has most probable classes; this is a regression.")
        classes = self._probability.shape[1]
        if len(self) == 0:  # whose number of classes may not be known
            return np.zeros((0, count), np.int64), np.zeros((0, count))
        if count > classes:
            raise InputError(f"The network has {classes} classes. Received: k={count}")
        found = self._probability.topk(count, dim=1)
        return found.indices.numpy(), found.values.numpy()

    @cached_property
    def _raw(self) -> torch.Tensor:
        first, head = self._outputs[0], self._signature.head
        return torch.cat([-first[:, :1], first[:, :1]], dim=1) if head == "sigmoid" else first

    @cached_property
    def _probability(self) -> torch.Tensor:
        head = self._signature.head
        if head == "sigmoid":
            positive = torch.sigmoid(self._raw[:, 1:])
            return torch.cat([1 - positive, positive], dim=1)
        if head == "sigmoids":
            return self._raw.sigmoid()
        if head == "probabilities":
            return self._raw
        return torch.softmax(self._raw, 1) if head == "softmax" else self._raw.exp()

    def _winners(self) -> torch.Tensor:
        thresholds = self._signature.thresholds
        if not thresholds:  # the order of raw values is that of probabilities
            return self._raw.argmax(1)
        scaled = self._probability / torch.tensor(thresholds, dtype=self._probability.dtype)
        # A class with the threshold 0 always wins, unless its probability is 0 as well.
        return scaled.nan_to_num(nan=-1.0, posinf=torch.inf).argmax(1)


def _rows_of_values(output: torch.Tensor) -> torch.Tensor:
    """(rows, values) in double precision: Spark's, and exact for all that a network gives."""
    flat = output if output.dim() == 2 else output.reshape(len(output), -1)
    return flat.double()
