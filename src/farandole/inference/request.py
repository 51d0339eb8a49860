"""Request: a network, and what is asked of it. All options are checked before anything begins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from farandole.arguments import check_choice, check_integer_or_auto
from farandole.artifact import HEADS, Signature
from farandole.errors import InputError, suggestion
from farandole.inference.answer import Answer
from farandole.inference.application import Application, Responder
from farandole.inference.models import load_network
from farandole.inference.nulls import NULLS
from farandole.inference.packed import Packed
from farandole.inference.precision import check_precision
from farandole.inference.prediction import Prediction
from farandole.inference.predictor import Predictor
from farandole.networks import ragged_axes, takes_gray


@dataclass(frozen=True)
class Request:
    """A network, what to answer, and how to apply it."""

    network: nn.Module
    signature: Signature | None
    answer: Answer
    nulls: str
    options: dict[str, Any]
    """Further arguments of a Predictor."""

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        answer: str | Mapping[str, int | str],
        k: int,
        labels: Sequence[str],
        nulls: str,
        batch_size: int | str,
        precision: str | None,
        head: str | None,
        input_shapes: Sequence[tuple[int, ...]] | None,
        allow_pickle: bool,
    ) -> Request:
        """Load the network, unless an option is wrong."""
        check_integer_or_auto("batch_size", batch_size)
        check_precision(precision)
        wanted = Answer.of(answer, k, labels)
        check_choice("nulls", nulls, NULLS)
        if head is not None and head not in HEADS:
            raise InputError(f"There is no head {head!r}. {suggestion(head, HEADS)}")
        check_shapes(input_shapes)
        network, signature = load_network(model, allow_pickle=allow_pickle)
        wanted.check(signature)
        options: dict[str, Any] = {"batch_size": batch_size, "precision": precision}
        if signature is None:
            options |= {"head": head, "input_shapes": input_shapes}
            wanted = wanted.for_head(head)
        elif head is not None or input_shapes is not None:
            raise InputError("head and input_shapes are for networks without a signature.")
        return cls(network, signature, wanted, nulls, options)

    def application(self, folder: str | os.PathLike[str] | None = None) -> Application:
        """Packed, for workers elsewhere; `folder` is one that they see as well."""
        packed = Packed.of(self.network, self.signature, folder, **self.options)
        return Application(packed, self.answer, self.nulls)

    def responder(self) -> Responder:
        """Ready to answer in this process."""
        predictor = Predictor(self.network, self.signature, **self.options)
        return Responder(predictor, self.answer, self.nulls, self.signature is not None)

    @property
    def axes(self) -> tuple[int, ...] | None:
        """How many axes of each feature vary in size; None if the network doesn't say."""
        return self.signature.axes if self.signature else ragged_axes(self.network)

    @property
    def gray(self) -> bool:
        """Whether photos are to come without colors."""
        if self.signature is not None:
            return all(size is None for size in self.signature.shapes[0])
        return takes_gray(self.network)

    @property
    def returns(self) -> pa.DataType:
        """The type of its answers: that of the answers for no rows."""
        width = max(self.answer.k, len(self.answer.labels))
        head = self.options.get("head") or "softmax"
        about = self.signature or Signature(
            features=(), shapes=(), dtypes=(), head=head, outputs=width
        )
        nothing = Prediction([torch.empty(0, about.outputs) for _ in self.answer.parts], about)
        return self.answer.to_arrow(nothing, self.signature is not None).type


def check_shapes(shapes: Any) -> None:
    """Raise unless these are shapes, one for each column."""
    if shapes is None:
        return
    if isinstance(shapes, str) or not all(isinstance(one, tuple | list) for one in shapes):
        raise InputError(
            "input_shapes must be a list with a shape for each column, such as [(1, 28, 28)]. "
            f"Received: input_shapes={shapes!r}"
        )
