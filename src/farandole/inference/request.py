"""What is asked of a network: loaded, its options checked, ready to respond in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from farandole.artifact import Signature
from farandole.artifact.signature import HEADS
from farandole.errors import InputError, suggestion
from farandole.inference.answer import Answer
from farandole.inference.application import Responder
from farandole.inference.habits import check_batch_size
from farandole.inference.inferred import head_of
from farandole.inference.models import load_network
from farandole.inference.nulls import NULLS
from farandole.inference.precision import check_precision
from farandole.inference.prediction import Prediction
from farandole.inference.predictor import Predictor
from farandole.networks.declared import ragged_axes, takes_gray


@dataclass(frozen=True)
class Request:
    """A responder with what is known before it has seen rows."""

    responder: Responder
    signature: Signature | None
    head: str

    @property
    def axes(self) -> tuple[int, ...] | None:
        """How many axes of each feature vary in size; None if the network doesn't say."""
        if self.signature is not None:
            return self.signature.axes
        return ragged_axes(self.responder.predictor.network)

    @property
    def gray(self) -> bool:
        """Whether photos are to come without colors."""
        if self.signature is not None:
            return all(size is None for size in self.signature.shapes[0])
        return takes_gray(self.responder.predictor.network)

    @property
    def returns(self) -> pa.DataType:
        """The type of its answers: that of the answers for no rows."""
        answer = self.responder.answer
        width = max(answer.k, len(answer.labels))
        about = self.signature or Signature(
            features=(), shapes=(), dtypes=(), head=self.head, outputs=width
        )
        nothing = Prediction([torch.empty(0, about.outputs) for _ in answer.parts], about)
        return answer.to_arrow(nothing, self.responder.signed).type


def load_request(
    model: Any,
    *,
    answer: str | Mapping[str, int | str],
    k: int,
    labels: Sequence[str],
    nulls: str,
    head: str | None,
    input_shapes: Sequence[tuple[int, ...]] | None,
    batch_size: int | str,
    precision: str | None,
    allow_pickle: bool,
) -> Request:
    """Load the network, unless an option is wrong."""
    check_batch_size(batch_size)
    check_precision(precision)
    wanted = Answer.of(answer, k, labels)
    if nulls not in NULLS:
        raise InputError(f'nulls must be "error" or "null". Received: nulls={nulls!r}')
    if head is not None and head not in HEADS:
        raise InputError(f"There is no head {head!r}. {suggestion(head, HEADS)}")
    network, signature = load_network(model, allow_pickle=allow_pickle)
    if signature is not None and (head is not None or input_shapes is not None):
        raise InputError("head and input_shapes are for a network without a signature of its own.")
    wanted.check(signature)
    predictor = Predictor(
        network,
        signature,
        batch_size=batch_size,
        precision=precision,
        head=head,
        input_shapes=input_shapes,
    )
    responder = Responder(predictor, wanted, nulls, signature is not None)
    return Request(responder, signature, head or head_of(network))
