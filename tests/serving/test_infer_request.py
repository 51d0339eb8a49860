"""What a request may say, and what is said about those that are wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from farandole.serving.datatypes import DATATYPES, pack_bytes
from farandole.serving.infer_request import InferRequest, read_infer_request
from farandole.serving.refusal import Refusal


def read(binary: bytes = b"", **said: Any) -> InferRequest:
    header = json.dumps(said).encode()
    return read_infer_request(header + binary, len(header) if binary else None)


def tensor(**said: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2.5], **said}


@pytest.mark.parametrize("datatype", DATATYPES)
def test_all_datatypes_come_in_json_and_as_bytes(datatype: str) -> None:
    dtype = DATATYPES[datatype]
    values = np.array([0, 1, 1, 0, 1, 0]).astype(dtype).reshape(2, 3)
    about = {"name": "x", "shape": [2, 3], "datatype": datatype}
    flat, nested = values.ravel().tolist(), values.tolist()
    size = {"parameters": {"binary_data_size": values.nbytes}}
    for found in (
        read(inputs=[{**about, "data": flat}]),
        read(inputs=[{**about, "data": nested}]),
        read(values.tobytes(), inputs=[{**about, **size}]),
    ):
        assert found.inputs["x"].data.dtype == dtype
        np.testing.assert_array_equal(found.inputs["x"].data, values)


def test_texts_come_in_json_and_as_bytes() -> None:
    about = {"name": "x", "shape": [2], "datatype": "BYTES"}
    packed = pack_bytes([b"a", "ü".encode()])
    size = {"parameters": {"binary_data_size": len(packed)}}
    assert read(inputs=[{**about, "data": ["a", "ü"]}]).inputs["x"].data == [b"a", "ü".encode()]
    assert read(packed, inputs=[{**about, **size}]).inputs["x"].data == [b"a", "ü".encode()]


def test_json_and_bytes_may_be_mixed() -> None:
    first = tensor()
    second = {"name": "y", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}}
    found = read(b"\x07", inputs=[first, second], id="7", outputs=[{"name": "p"}])
    assert found.inputs["y"].data.tolist() == [7]
    assert found.inputs["x"].data.tolist() == [1, 2.5]
    assert (found.id, found.outputs, found.binary) == ("7", {"p": False}, False)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "'inputs' must be a list"),
    ({"inputs": []}, "'inputs' must be a list"),
    ({"inputs": [1]}, "must be an object"),
    ({"inputs": [tensor(name=3)]}, "needs a 'name'"),
    ({"inputs": [tensor(datatype="FP8")]}, "needs a 'datatype'"),
    ({"inputs": [tensor(datatype=[])]}, "needs a 'datatype'"),
    ({"inputs": [tensor(shape=[-1])]}, "needs a 'shape'"),
    ({"inputs": [tensor(shape=[True, 2])]}, "needs a 'shape'"),
    ({"inputs": [tensor(shape=[1 << 39, 1 << 39])]}, "needs a 'shape'"),
    ({"inputs": [tensor(shape=[1] * 17)]}, "needs a 'shape'"),
    ({"inputs": [tensor(shape=[3])]}, "has 2 values, but its shape is [3]"),
    ({"inputs": [tensor(data=[[1], [2]])]}, "don't have its shape"),
    ({"inputs": [tensor(data=["1", "2"])]}, "holds '1', which is no FP32"),
    ({"inputs": [tensor(data=[1, None])]}, "holds null, which is no FP32"),
    ({"inputs": [tensor(data=[1, True])]}, "holds true, which is no FP32"),
    ({"inputs": [tensor(datatype="INT8", data=[1, 300])]}, "a number that is no INT8"),
    ({"inputs": [tensor(datatype="UINT8", data=[1, -1])]}, "a number that is no UINT8"),
    ({"inputs": [tensor(datatype="INT64", data=[1, 1.5])]}, "holds 1.5, which is no INT64"),
    ({"inputs": [tensor(datatype="BOOL", data=[1, 0])]}, "which is no BOOL"),
    ({"inputs": [tensor(datatype="BYTES", data=[1, 0])]}, "which is no text"),
    ({"inputs": [tensor(), tensor()]}, "there twice"),
    ({"inputs": [tensor(parameters={"shared_memory_region": "r"})]}, "Shared memory"),
    ({"inputs": [tensor(data=None, parameters={"binary_data_size": 8})]}, "fewer bytes"),
    ({"inputs": [tensor(parameters={"binary_data_size": 8})]}, "comes twice"),
    ({"inputs": [tensor(parameters=[])]}, "'parameters' must be an object"),
    ({"inputs": [tensor()], "id": 3}, "'id' must be a text"),
    ({"inputs": [tensor()], "outputs": [{}]}, "needs a 'name'"),
    ({"inputs": [tensor()], "outputs": [{"name": "p", "parameters": {"classification": 3}}]}, "cl"),
    ({"inputs": [tensor()], "parameters": {"binary_data_output": 1}}, "must be true or false"),
    ({"inputs": [tensor()], "parameters": {"timeout": -5}}, "whole number of microseconds"),
]


@pytest.mark.parametrize(("said", "words"), BAD)
def test_what_is_wrong_is_said(said: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal) as refused:
        read(**said)
    assert refused.value.status == 400
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("size", "binary", "words"),
    [(4, b"\0" * 4, "has 8 bytes"), (8, b"\0" * 9, "1 bytes of binary data"), (9, b"\0", "fewer")],
)
def test_bytes_have_to_be_as_many_as_the_shape_says(size: int, binary: bytes, words: str) -> None:
    one = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    with pytest.raises(Refusal, match=words):
        read(binary, inputs=[one])


@pytest.mark.parametrize("packed", [b"\1\0\0\0", b"\1\0\0\0ab", b"\xff\xff\xff\xffa", b"\0\0"])
def test_texts_that_lie_about_their_length_are_refused(packed: bytes) -> None:
    size = {"parameters": {"binary_data_size": len(packed)}}
    with pytest.raises(Refusal, match="1 values of the datatype BYTES"):
        read(packed, inputs=[{"name": "x", "shape": [1], "datatype": "BYTES", **size}])


def test_a_header_longer_than_the_body_is_refused() -> None:
    with pytest.raises(Refusal, match="Inference-Header-Content-Length is 99"):
        read_infer_request(b"{}", 99)


@pytest.mark.parametrize("body", [b"", b"[]", b"3", b'{"inputs": NaN}', b"\xff\xfe", b"{"])
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(Refusal, match="JSON"):
        read_infer_request(body, None)
