"""The messages of the Open Inference Protocol over gRPC, with those of Triton's that are served.

They are made here, of the text below, and in a pool of their own: other packages (a client of
Triton's, say) have messages of the same names in protobuf's common pool, where names can't be
there twice.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"

FIELDS = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1",
    "ModelReadyRequest": "string name = 1; string version = 2",
    "ModelReadyResponse": "bool ready = 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name = 1; string version = 2; repeated string extensions = 3",
    "ModelMetadataRequest": "string name = 1; string version = 2",
    "ModelMetadataResponse": """
        string name = 1; repeated string versions = 2; string platform = 3;
        repeated TensorMetadata inputs = 4; repeated TensorMetadata outputs = 5""",
    "TensorMetadata": "string name = 1; string datatype = 2; repeated int64 shape = 3",
    "ModelInferRequest": """
        string model_name = 1; string model_version = 2; string id = 3;
        map<string, InferParameter> parameters = 4; repeated InferInputTensor inputs = 5;
        repeated InferRequestedOutputTensor outputs = 6; repeated bytes raw_input_contents = 7""",
    "InferInputTensor": """
        string name = 1; string datatype = 2; repeated int64 shape = 3;
        map<string, InferParameter> parameters = 4; InferTensorContents contents = 5""",
    "InferRequestedOutputTensor": "string name = 1; map<string, InferParameter> parameters = 2",
    "InferTensorContents": """
        repeated bool bool_contents = 1; repeated int32 int_contents = 2;
        repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4;
        repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6;
        repeated double fp64_contents = 7; repeated bytes bytes_contents = 8""",
    "InferParameter": """
        bool bool_param = 1; int64 int64_param = 2; string string_param = 3;
        double double_param = 4; uint64 uint64_param = 5""",
    "ModelInferResponse": """
        string model_name = 1; string model_version = 2; string id = 3;
        map<string, InferParameter> parameters = 4; repeated InferOutputTensor outputs = 5;
        repeated bytes raw_output_contents = 6""",
    "InferOutputTensor": """
        string name = 1; string datatype = 2; repeated int64 shape = 3;
        map<string, InferParameter> parameters = 4; InferTensorContents contents = 5""",
    "ModelStreamInferResponse": "string error_message = 1; ModelInferResponse infer_response = 2",
    "RepositoryIndexRequest": "string repository_name = 1; bool ready = 2",
    "RepositoryIndexResponse": "repeated ModelIndex models = 1",
    "ModelIndex": "string name = 1; string version = 2; string state = 3; string reason = 4",
    "RepositoryModelLoadRequest": """
        string repository_name = 1; string model_name = 2;
        map<string, ModelRepositoryParameter> parameters = 3""",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": """
        string repository_name = 1; string model_name = 2;
        map<string, ModelRepositoryParameter> parameters = 3""",
    "RepositoryModelUnloadResponse": "",
    "ModelRepositoryParameter": """
        bool bool_param = 1; int64 int64_param = 2; string string_param = 3;
        bytes bytes_param = 4""",
}
"""The fields of each message, as a .proto has them."""

SMALL, MOST_FIELDS = 1 << 16, 100_000
"""Bytes of a message that needs no counting; and how many fields one may have, with those of its
inputs and outputs: an empty one has 2 bytes, and takes 88 once it is parsed."""
_INPUTS, _OUTPUTS = 5, 6
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5

CHOICES = ("InferParameter", "ModelRepositoryParameter")
"""Messages of which one field is set."""

_FIELD = re.compile(r"(repeated )?(?:map<string, (\w+)>|(\w+)) (\w+) = (\d+)")


def _file() -> Any:
    found = FileDescriptorProto(name="farandole.proto", package=PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = found.message_type.add(name=name)
        if name in CHOICES:
            message.oneof_decl.add(name="parameter_choice")
        for repeated, value, kind, field, number in _FIELD.findall(fields):
            one = message.field.add(name=field, number=int(number))
            if value:
                kind = _add_entry(message, field, value)
            many = repeated or value
            one.label = one.LABEL_REPEATED if many else one.LABEL_OPTIONAL
            _set_type(one, kind)
            if name in CHOICES:
                one.oneof_index = 0
    return found


def _add_entry(message: Any, field: str, value: str) -> str:
    """A map is, on its way, a list of messages with a key and a value: its type's name."""
    entry = message.nested_type.add(name=f"{field.title()}Entry")
    entry.options.map_entry = True
    for number, (name, kind) in enumerate((("key", "string"), ("value", value)), 1):
        one = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        _set_type(one, kind)
    return f"{message.name}.{entry.name}"


def _set_type(field: Any, kind: str) -> None:
    if kind.islower():
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"


def _made() -> dict[str, Any]:
    pool = DescriptorPool()
    pool.AddSerializedFile(_file().SerializeToString())
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in FIELDS
    }


MESSAGES: dict[str, Any] = _made()
"""The class of each message, by its name."""


def has_too_many_fields(body: bytes) -> bool:
    """Whether a message is too costly to parse; ValueError or IndexError if it can't be parsed.

    >>> has_too_many_fields(b"\\x2a\\x00" * MOST_FIELDS), has_too_many_fields(b"\\x2a\\x00" * 9)
    (False, False)
    >>> has_too_many_fields(b"\\x2a\\x00" * (MOST_FIELDS + 1))
    True
    """
    if len(body) <= SMALL:
        return False
    count, at = 0, 0
    ends = [len(body)]  # of the message, and of the tensor that is read
    while ends:
        if at == ends[-1]:
            ends.pop()
            continue
        tag, at = _varint(body, at)
        count += 1
        if count > MOST_FIELDS:
            return True
        if tag & 7 == _BYTES:
            size, at = _varint(body, at)
            if len(ends) == 1 and tag >> 3 in (_INPUTS, _OUTPUTS):
                ends.append(at + size)
            else:
                at += size
        elif tag & 7 == _VARINT:
            _, at = _varint(body, at)
        else:
            at += {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(tag & 7, 0)
        if at > ends[-1] or ends[-1] > len(body):
            raise ValueError("a field is longer than what it is in")
    return False


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A whole number of up to 10 bytes, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is longer than 10 bytes")
