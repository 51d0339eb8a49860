"""JSON in and out: fast, of bounded depth, and strict."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from farandole.errors import MissingPackage
from farandole.serving.refusal import malformed

try:
    import orjson
except ImportError:  # said when something is to be served, not when this file is imported
    orjson = None  # type: ignore[assignment]

DEPTH = 64
"""How many lists and objects may stand inside of each other."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def check_installed() -> None:
    """Raise unless the packages of the extra are there."""
    if orjson is None:
        raise MissingPackage("orjson", "serve")


def read_json(text: bytes) -> Any:
    """What a body says.

    >>> read_json(b'{"rows": [1, 2.5]}')
    {'rows': [1, 2.5]}
    """
    if text.count(b"[") + text.count(b"{") > DEPTH and _depth(text) > DEPTH:
        raise malformed(f"The JSON is nested deeper than {DEPTH}.")
    try:
        return orjson.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"The body is no JSON: {error}") from None


def write_json(value: Any) -> bytes:
    """The same in the other direction, of NumPy's arrays too.

    >>> write_json({"data": np.zeros(2)})
    b'{"data":[0.0,0.0]}'
    """
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _depth(text: bytes) -> int:
    """How deep brackets go, those in strings left out; nobody parses before that is known."""
    plain = _STRING.sub(b"", text) if b'"' in text else text
    codes = np.frombuffer(plain, np.uint8)
    opening = (codes == ord("[")) | (codes == ord("{"))
    closing = (codes == ord("]")) | (codes == ord("}"))
    return int(np.cumsum(opening.astype(np.int32) - closing).max(initial=0))
