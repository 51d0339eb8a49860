"""Our messages have the fields of the client that others use: same numbers, same types."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.serving.grpc_messages import FIELDS, MESSAGES

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
