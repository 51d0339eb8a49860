"""The data of a tensor in JSON → an array: values in one list, or in lists of lists."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np

from farandole.serving.datatypes import BYTES, DATATYPES, json_types
from farandole.serving.refusal import malformed

Array = np.ndarray[Any, Any]
_PIECE = 1 << 16


def tensor_from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Any:
    """An array of this shape; of BYTES, a list of all texts.

    >>> tensor_from_json("x", "FP32", (2, 2), [[1, 2], [3, 4.5]])
    array([[1. , 2. ],
           [3. , 4.5]], dtype=float32)
    """
    flat = _flattened(name, shape, data)
    count = math.prod(shape)
    if len(flat) != count:
        raise malformed(f"Input {name!r} has {len(flat)} values, but its shape is {list(shape)}.")
    if datatype == BYTES:
        return _texts(name, flat)
    return _numbers(name, datatype, flat).reshape(shape)


def _flattened(name: str, shape: tuple[int, ...], data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise malformed(f"Input {name!r} has no list of data.")
    flat: list[Any] = data
    axis = 1
    while flat and type(flat[0]) is list:
        width = shape[axis] if axis < len(shape) else -1
        if not all(type(row) is list and len(row) == width for row in flat):
            raise malformed(f"The lists of input {name!r} don't have its shape {list(shape)}.")
        flat = list(chain.from_iterable(flat))
        axis += 1
    return flat


def _numbers(name: str, datatype: str, flat: list[Any]) -> Array:
    if len(flat) <= _PIECE:
        return _numbers_of_piece(name, datatype, flat)
    found = np.empty(len(flat), DATATYPES[datatype])
    for start in range(0, len(flat), _PIECE):  # between them, other threads have their turn
        piece = slice(start, start + _PIECE)
        found[piece] = _numbers_of_piece(name, datatype, flat[piece])
    return found


def _numbers_of_piece(name: str, datatype: str, flat: list[Any]) -> Array:
    allowed = json_types(datatype)
    if not set(map(type, flat)) <= allowed:
        other = next(value for value in flat if type(value) not in allowed)
        raise malformed(f"Input {name!r} holds {_shown(other)}, which is no {datatype}.")
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, DATATYPES[datatype])
    except OverflowError:
        raise malformed(f"Input {name!r} holds a number that is no {datatype}.") from None


def _texts(name: str, flat: list[Any]) -> list[bytes]:
    if not all(type(value) is str for value in flat):
        other = next(value for value in flat if type(value) is not str)
        raise malformed(f"Input {name!r} holds {_shown(other)}, which is no text.")
    return [value.encode() for value in flat]


def _shown(value: Any) -> str:
    """A value as JSON has it, if it is short."""
    words = {None: "null", True: "true", False: "false"}
    if value is None or value is True or value is False:
        return words[value]
    return repr(value)[:40] if isinstance(value, int | float | str) else "a list or an object"
