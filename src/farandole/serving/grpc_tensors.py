"""A message of gRPC → what is asked of a model; answers → the message that goes back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from farandole.serving.datatypes import BYTES, pack_bytes
from farandole.serving.grpc_messages import MESSAGES
from farandole.serving.infer_request import (
    MOST_AXES,
    MOST_TENSORS,
    InferRequest,
    Tensor,
    plan_of,
    tensor_from_bytes,
)
from farandole.serving.refusal import malformed
from farandole.serving.tensor_json import tensor_from_json

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where values of a datatype are, if they don't come as bytes; FP16 always does."""

MOST_PARAMETERS = 100


def read_infer_message(message: Any) -> InferRequest:
    """What a ModelInferRequest asks, with the checks that a request over HTTP has.

    >>> asked = MESSAGES["ModelInferRequest"](raw_input_contents=[b"abc"])
    >>> _ = asked.inputs.add(name="x", datatype="UINT8", shape=[3])
    >>> read_infer_message(asked).inputs["x"].data
    array([97, 98, 99], dtype=uint8)
    """
    if len(message.inputs) > MOST_TENSORS or len(message.outputs) > MOST_TENSORS:
        raise malformed(f"A request can have {MOST_TENSORS:,} inputs, and as many outputs.")
    said = {
        "id": message.id or None,
        "parameters": _parameters(message),
        "inputs": [
            {
                "name": one.name,
                "datatype": one.datatype,
                "shape": one.shape[: MOST_AXES + 1],
                "parameters": _parameters(one),
            }
            for one in message.inputs
        ],
        "outputs": [{"name": one.name, "parameters": _parameters(one)} for one in message.outputs],
    }
    plan = plan_of(said)
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise malformed(
            f"There are {len(message.inputs)} inputs, but raw_input_contents has {len(raw)}."
        )
    inputs = {}
    for number, one in enumerate(message.inputs):
        shape = plan.inputs[one.name].shape
        data = _from_raw(one, shape, raw[number]) if raw else _from_contents(one, shape)
        inputs[one.name] = Tensor(one.datatype, shape, data)
    return InferRequest(plan.id, inputs, plan.outputs, True, plan.seconds)


def _parameters(owner: Any) -> dict[str, Any]:
    if len(owner.parameters) > MOST_PARAMETERS:
        raise malformed(f"There can be {MOST_PARAMETERS} parameters in one place.")
    found = {}
    for name, value in owner.parameters.items():
        field = value.WhichOneof("parameter_choice")
        found[name] = None if field is None else getattr(value, field)
    return found


def _from_raw(one: Any, shape: tuple[int, ...], raw: bytes) -> Any:
    if one.HasField("contents"):
        raise malformed(f"Input {one.name!r} comes twice: in raw_input_contents and in contents.")
    return tensor_from_bytes(one.name, one.datatype, shape, memoryview(raw))


def _from_contents(one: Any, shape: tuple[int, ...]) -> Any:
    field = CONTENTS.get(one.datatype)
    if field is None:
        raise malformed(f"Input {one.name!r}: {one.datatype} comes in raw_input_contents only.")
    for other, _ in one.contents.ListFields():
        if other.name != field:
            raise malformed(
                f"Input {one.name!r} of datatype {one.datatype} has its values in {field}. "
                f"Received: {other.name}"
            )
    values = getattr(one.contents, field)
    if len(values) != math.prod(shape):
        raise malformed(
            f"Input {one.name!r} has {len(values)} values, but its shape is {list(shape)}."
        )
    if one.datatype == BYTES:
        return list(values)
    return tensor_from_json(one.name, one.datatype, shape, list(values))


def infer_message(
    model: str, version: str, identity: str | None, outputs: list[tuple[str, str, Any]]
) -> Any:
    """A ModelInferResponse, of outputs that are name, datatype and values.

    >>> infer_message("m", "1", "7", [("y", "INT8", np.array([5], np.int8))]).raw_output_contents
    [b'\\x05']
    """
    said = MESSAGES["ModelInferResponse"](model_name=model, model_version=version, id=identity)
    for name, datatype, values in outputs:
        said.outputs.add(name=name, datatype=datatype, shape=values.shape)
        flat = np.ravel(values)
        said.raw_output_contents.append(pack_bytes(flat) if datatype == BYTES else flat.tobytes())
    return said
