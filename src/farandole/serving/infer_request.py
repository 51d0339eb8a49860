"""The body of an inference request → arrays: JSON, binary tensors after it, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.serving.datatypes import BYTES, DATATYPES, unpack_bytes
from farandole.serving.json_text import read_json
from farandole.serving.refusal import malformed
from farandole.serving.tensor_json import tensor_from_json

MOST_AXES = 16
MOST_VALUES = 1 << 40
MOST_TENSORS = 10_000


@dataclass(slots=True)
class Tensor:
    """An input as it came: an array, or a list of texts."""

    datatype: str
    shape: tuple[int, ...]
    data: Any


@dataclass(slots=True)
class InferRequest:
    """What is asked of a model."""

    id: str | None
    inputs: dict[str, Tensor]
    outputs: dict[str, bool] | None
    """The names of wanted outputs → whether as binary data; None: all of them."""
    binary: bool
    """Whether outputs of which nothing is said are wanted as binary data."""
    seconds: float | None
    """How long the sender waits."""


@dataclass(slots=True)
class _Input:
    """What the JSON says of an input: its data, or how many bytes they are."""

    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: Any


@dataclass(slots=True)
class Plan:
    """What the JSON says."""

    id: str | None
    inputs: dict[str, _Input]
    outputs: dict[str, bool] | None
    binary: bool
    seconds: float | None


def read_infer_request(body: bytes, header_length: int | None) -> InferRequest:
    """Parse a request whose JSON has so many bytes; None: all of them.

    >>> body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[7]}]}'
    >>> read_infer_request(body, None).inputs["x"].data
    array([7], dtype=int8)
    """
    if header_length is None:
        header, binary = body, memoryview(b"")
    elif header_length > len(body):
        raise malformed(
            f"Inference-Header-Content-Length is {header_length}, but the body has {len(body)} "
            "bytes."
        )
    else:
        header, binary = body[:header_length], memoryview(body)[header_length:]
    said = plan_of(read_json(header))
    return InferRequest(
        said.id, _inputs(said.inputs, binary), said.outputs, said.binary, said.seconds
    )


def plan_of(said: Any) -> Plan:
    """What a request says, but for its tensors' bytes; checked."""
    if type(said) is not dict:
        raise malformed("The body must be a JSON object.")
    parameters = _object(said, "parameters")
    wants_binary = parameters.get("binary_data_output", False)
    if type(wants_binary) is not bool:
        raise malformed("The parameter 'binary_data_output' must be true or false.")
    identity = said.get("id")
    if identity is not None and type(identity) is not str:
        raise malformed("The request's 'id' must be a text.")
    return Plan(
        identity,
        _described_inputs(said.get("inputs")),
        _outputs(said.get("outputs"), wants_binary),
        wants_binary,
        _seconds(parameters.get("timeout")),
    )


def _inputs(described: dict[str, _Input], binary: memoryview) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    start = 0
    for name, one in described.items():
        if one.size is None:
            data = tensor_from_json(name, one.datatype, one.shape, one.data)
        else:
            end = start + one.size
            if end > len(binary):
                raise malformed(f"Input {name!r} has fewer bytes than its binary_data_size says.")
            data = tensor_from_bytes(name, one.datatype, one.shape, binary[start:end])
            start = end
        found[name] = Tensor(one.datatype, one.shape, data)
    if start != len(binary):
        raise malformed(f"{len(binary) - start} bytes of binary data belong to no input.")
    return found


def _described_inputs(given: Any) -> dict[str, _Input]:
    found: dict[str, _Input] = {}
    for one in _list(given, "inputs"):
        name, shape, datatype = _described(one)
        if name in found:
            raise malformed(f"Input {name!r} is there twice.")
        parameters = _object(one, "parameters")
        if "shared_memory_region" in parameters:
            raise malformed("Shared memory isn't supported: send the data.")
        size = parameters.get("binary_data_size")
        if size is not None and (type(size) is not int or size < 0):
            raise malformed(f"The binary_data_size of input {name!r} must be a whole number.")
        if size is not None and one.get("data") is not None:
            raise malformed(f"Input {name!r} comes twice: as 'data' and as binary data.")
        found[name] = _Input(datatype, shape, size, one.get("data"))
    return found


def _described(one: Any) -> tuple[str, tuple[int, ...], str]:
    """Name, shape and datatype of an input, checked before anything of that size is made."""
    if type(one) is not dict:
        raise malformed("Each of the 'inputs' must be an object.")
    name, shape, datatype = one.get("name"), one.get("shape"), one.get("datatype")
    if type(name) is not str:
        raise malformed("Each of the 'inputs' needs a 'name', a text.")
    if type(datatype) is not str or (datatype not in DATATYPES and datatype != BYTES):
        raise malformed(
            f"Input {name!r} needs a 'datatype', one of {', '.join([*DATATYPES, BYTES])}. "
            f"Received: {str(datatype)[:20]!r}"
        )
    sizes = shape if type(shape) is list and 1 <= len(shape) <= MOST_AXES else []
    whole = all(type(size) is int and 0 <= size < MOST_VALUES for size in sizes)
    if not sizes or not whole or math.prod(sizes) >= MOST_VALUES:
        raise malformed(f"Input {name!r} needs a 'shape': a list of whole numbers.")
    return name, tuple(sizes), datatype


def tensor_from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    """An array of this shape; of BYTES, a list of all texts."""
    if datatype == BYTES:
        return unpack_bytes(data, math.prod(shape))
    dtype = DATATYPES[datatype]
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise malformed(
            f"Input {name!r} of shape {list(shape)} and datatype {datatype} has "
            f"{math.prod(shape) * dtype.itemsize} bytes. Received: {len(data)}"
        )
    if datatype == "BOOL":  # a byte that is neither 0 nor 1 is no bool of NumPy's
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def _outputs(given: Any, binary: bool) -> dict[str, bool] | None:
    if given is None or given == []:
        return None
    found = {}
    for one in _list(given, "outputs"):
        if type(one) is not dict or type(one.get("name")) is not str:
            raise malformed("Each of the 'outputs' needs a 'name', a text.")
        parameters = _object(one, "parameters")
        for unknown in ("classification", "shared_memory_region"):
            if parameters.get(unknown):
                raise malformed(f"Outputs with the parameter {unknown!r} aren't supported.")
        wanted = parameters.get("binary_data", binary)
        if type(wanted) is not bool:
            raise malformed("The parameter 'binary_data' must be true or false.")
        found[one["name"]] = wanted
    return found


def _seconds(timeout: Any) -> float | None:
    """The protocol counts in microseconds."""
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or not 0 < timeout < 1 << 53:
        raise malformed("The parameter 'timeout' must be a whole number of microseconds.")
    return timeout / 1e6


def _object(owner: dict[str, Any], name: str) -> dict[str, Any]:
    found = owner.get(name)
    if found is None:
        return {}
    if type(found) is not dict:
        raise malformed(f"{name!r} must be an object.")
    return found


def _list(given: Any, name: str) -> list[Any]:
    if type(given) is not list or not 0 < len(given) <= MOST_TENSORS:
        raise malformed(f"{name!r} must be a list with something in it.")
    return given
