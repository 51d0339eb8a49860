"""Our messages have the fields of the client that others use: same numbers, same types."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.serving.grpc_messages import (
    FIELDS,
    MESSAGES,
    MOST_FIELDS,
    has_too_many_fields,
)

service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")


def messages(owner: Any) -> dict[str, Any]:
    """All messages by the last part of their names, inner ones too."""
    found: dict[str, Any] = {}
    for name, one in owner.items():
        found |= {name: one, **messages(one.nested_types_by_name)}
    return found


THEIRS = messages(service_pb2.DESCRIPTOR.message_types_by_name)


def fields(message: Any) -> list[tuple[Any, ...]]:
    return [
        (
            one.number,
            one.name,
            one.type,
            one.is_repeated,
            one.message_type and one.message_type.name,
            one.containing_oneof and one.containing_oneof.name,
        )
        for one in message.fields
    ]


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_those_of_the_protocol(name: str) -> None:
    assert fields(MESSAGES[name].DESCRIPTOR) == fields(THEIRS[name])


def test_a_message_goes_from_one_to_the_other() -> None:
    theirs = service_pb2.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"ab"])
    theirs.parameters["timeout"].int64_param = 5
    theirs.inputs.add(name="x", datatype="INT8", shape=[2]).contents.int_contents[:] = [1, -1]
    ours = MESSAGES["ModelInferRequest"].FromString(theirs.SerializeToString())
    assert str(ours) == str(theirs)
    assert service_pb2.ModelInferRequest.FromString(ours.SerializeToString()) == theirs


def within(number: int, inner: bytes) -> bytes:
    """A field of bytes, or of a message."""
    length, size = b"", len(inner)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + inner


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_many_empty_fields_are_too_many_before_they_are_parsed(number: int) -> None:
    many = bytes([number << 3 | 2, 0]) * (MOST_FIELDS + 1)
    assert has_too_many_fields(many)
    assert has_too_many_fields(within(5, b"\x22\x00" * (MOST_FIELDS + 1)))  # an input's parameters
    assert not has_too_many_fields(within(7, many))  # bytes may be any


def test_all_that_a_request_may_have_is_not_too_many() -> None:
    asked = MESSAGES["ModelInferRequest"](model_name="m", raw_input_contents=[b"x" * 9] * 10_000)
    for number in range(10_000):
        asked.inputs.add(name=f"x{number}", datatype="FP32", shape=[1, 300])
        asked.outputs.add(name=f"y{number}")
    assert not has_too_many_fields(asked.SerializeToString())


@pytest.mark.parametrize(
    "body",
    [within(7, b"x" * 70_000)[:-1], b"\xff" * 70_000, within(5, b"\x0a\x05" + b"x" * 70_000)[:-1]],
)
def test_what_is_cut_off_is_no_message(body: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        has_too_many_fields(body)
