"""Asked: what a request wants of a model. Binary requests that begin alike are understood once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.serving.infer_request import InferRequest, read_infer_request
from farandole.serving.model import VALUE, Model, Rows

Array = np.ndarray[Any, Any]
Wanted = list[tuple[str, bool]]

MOST_LAYOUTS = 256
LONGEST = 1024
"""Bytes of JSON that are worth keeping."""


@dataclass(slots=True)
class Asked:
    """The network's columns, and what is to be said of them."""

    columns: Sequence[Rows]
    wanted: Wanted
    """Names of outputs, and whether as binary data."""
    id: str | None
    seconds: float | None
    names: list[str]
    """Of the wanted outputs."""


@dataclass(slots=True)
class Layout:
    """Where the columns lie in a body that begins with a certain JSON: all of it was checked."""

    size: int
    places: list[tuple[np.dtype[Any], int, tuple[int, ...]]]
    """Of each column: type, first byte, shape."""
    wanted: Wanted
    id: str | None
    seconds: float | None
    names: list[str]

    def of(self, body: bytes) -> Asked:
        """What a request asks that has these bytes."""
        columns: list[Rows] = [
            np.ndarray(shape, dtype, body, start) for dtype, start, shape in self.places
        ]
        return Asked(columns, self.wanted, self.id, self.seconds, self.names)


def read_asked(model: Model, body: bytes, header_length: int | None) -> Asked:
    """What a request's body asks of a model; its JSON has so many bytes, None: all."""
    if header_length is None:
        return asked_of(model, read_infer_request(body, None))
    header = body[:header_length]
    known: Layout | None = model.layouts.get(header)
    if known is not None and known.size == len(body):
        return known.of(body)
    asked = asked_of(model, read_infer_request(body, header_length))
    places = _places(body, asked.columns)
    if places is not None and header_length <= LONGEST:
        if len(model.layouts) >= MOST_LAYOUTS:
            model.layouts.clear()
        model.layouts[header] = Layout(
            len(body), places, asked.wanted, asked.id, asked.seconds, asked.names
        )
    return asked


def asked_of(model: Model, request: InferRequest) -> Asked:
    """What a request asks of this model, checked against what the model takes and gives."""
    columns = model.columns(request.inputs)
    if request.outputs is None:
        wanted = [(name, request.binary) for name in model.outputs]
    else:
        wanted = [(model.spec(name).name, binary) for name, binary in request.outputs.items()]
    names = [name for name, _ in wanted]
    model.check_answer(columns, names, VALUE)
    return Asked(columns, wanted, request.id, request.seconds, names)


def _places(body: bytes, columns: Sequence[Rows]) -> Any:
    """Where the columns lie in the body; None if one of them was made anew."""
    whole = np.frombuffer(body, np.uint8)
    places = []
    for column in columns:
        if not isinstance(column, np.ndarray) or not np.may_share_memory(column, whole):
            return None
        places.append((column.dtype, _address(column) - _address(whole), column.shape))
    return places


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
