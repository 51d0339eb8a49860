"""The 13 datatypes of the Open Inference Protocol, as NumPy's, and texts as bytes with lengths."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from farandole.serving.refusal import malformed

DATATYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
BYTES = "BYTES"
_NAMES = {str(dtype): name for name, dtype in DATATYPES.items()} | {"bfloat16": "FP32"}
_LENGTH = struct.Struct("<I")


def datatype_of(dtype: str) -> str:
    """The protocol's word for a type of torch's.

    >>> datatype_of("float32"), datatype_of("bool")
    ('FP32', 'BOOL')
    """
    return _NAMES[dtype]


def json_types(datatype: str) -> set[type]:
    """What a value of this datatype is in JSON, as Python reads it.

    >>> json_types("INT8")
    {<class 'int'>}
    """
    kind = DATATYPES[datatype].kind
    if kind == "b":
        return {bool}
    return {int, float} if kind == "f" else {int}


def pack_bytes(texts: Iterable[bytes]) -> bytes:
    """Texts one after another, each after its length.

    >>> pack_bytes([b"ab"])
    b'\\x02\\x00\\x00\\x00ab'
    """
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def unpack_bytes(packed: memoryview, count: int) -> list[bytes]:
    """The inverse of `pack_bytes`, of so many texts."""
    texts: list[bytes] = []
    start = 0
    while start < len(packed) and len(texts) < count:
        begin = start + _LENGTH.size
        if begin > len(packed):
            break
        end = begin + _LENGTH.unpack(packed[start:begin])[0]
        if end > len(packed):
            break
        texts.append(bytes(packed[begin:end]))
        start = end
    if len(texts) != count or start != len(packed):
        raise malformed(f"The binary data don't hold {count} values of the datatype BYTES.")
    return texts
