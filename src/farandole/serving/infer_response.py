"""Answers → the body of an inference response: JSON, with binary tensors after it where asked."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from farandole.serving.datatypes import BYTES, DATATYPES, pack_bytes
from farandole.serving.json_text import write_json

Array = np.ndarray[Any, Any]


def write_infer_response(
    model: str, version: str, identity: str | None, outputs: list[tuple[str, str, Array, bool]]
) -> tuple[bytes, int | None]:
    """The body, and how many bytes of it are JSON; None: all of them.

    Args:
        model: its name.
        version: of the model.
        identity: the request's id.
        outputs: name, datatype, values, and whether they are wanted as binary data.

    >>> write_infer_response("m", "1", None, [("y", "FP64", np.array([0.5]), False)])[0][-34:]
    b'"FP64","shape":[1],"data":[0.5]}]}'
    """
    if identity is None:
        layout = []
        for name, kind, values, binary in outputs:
            if not binary or kind == BYTES:
                break
            layout.append((name, kind, values.shape))
        else:
            header = _binary_header(model, version, tuple(layout))
            return b"".join([header, *[one[2].tobytes() for one in outputs]]), len(header)
    described, parts = [], []
    for name, datatype, values, binary in outputs:
        one: dict[str, Any] = {"name": name, "datatype": datatype, "shape": values.shape}
        if binary:
            flat = values.ravel()
            part = pack_bytes(flat) if datatype == BYTES else flat.tobytes()
            one["parameters"] = {"binary_data_size": len(part)}
            parts.append(part)
        elif datatype == BYTES:
            one["data"] = [text.decode() for text in values.ravel()]
        else:
            one["data"] = np.ascontiguousarray(values).ravel()
        described.append(one)
    header = _header(model, version, identity, described)
    return (b"".join([header, *parts]), len(header)) if parts else (header, None)


def _header(model: str, version: str, identity: str | None, outputs: list[Any]) -> bytes:
    said: dict[str, Any] = {"model_name": model, "model_version": version}
    if identity is not None:
        said["id"] = identity
    return write_json({**said, "outputs": outputs})


@lru_cache(maxsize=256)
def _binary_header(
    model: str, version: str, layout: tuple[tuple[str, str, tuple[int, ...]], ...]
) -> bytes:
    """The JSON before numbers as bytes, which is the same for all requests of a size."""
    outputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": shape,
            "parameters": {"binary_data_size": math.prod(shape) * DATATYPES[datatype].itemsize},
        }
        for name, datatype, shape in layout
    ]
    return _header(model, version, None, outputs)
