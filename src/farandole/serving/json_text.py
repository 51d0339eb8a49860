"""JSON in and out: fast, of bounded depth, and strict."""

from __future__ import annotations

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
MOST = 1 << 21
"""How many lists and objects there may be: an empty one has 2 bytes, and takes 60 in memory."""
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_BLOCK = 1 << 20


def check_installed() -> None:
    """Raise unless the packages of the extra are there."""
    if orjson is None:
        raise MissingPackage("orjson", "serve")


def read_json(text: bytes) -> Any:
    """What a body says.

    >>> read_json(b'{"rows": [1, 2.5]}')
    {'rows': [1, 2.5]}
    """
    opened = text.count(b"[") + text.count(b"{")
    if opened > MOST:
        raise malformed(f"The JSON has more than {MOST:,} lists and objects: send binary tensors.")
    if opened > DEPTH and _depth(text) > DEPTH:
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
    if b"\\" in text:  # pairs of them first: the quote after a pair ends its string
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(text.translate(None, _OTHERS), np.uint8)
    quotes = depth = deepest = 0
    for start in range(0, len(marks), _BLOCK):
        codes = marks[start : start + _BLOCK]
        seen = quotes + np.cumsum(codes == ord('"'))
        outside = codes[(seen % 2 == 0) & (codes != ord('"'))]
        opening = (outside == ord("[")) | (outside == ord("{"))
        depths = depth + np.cumsum(np.where(opening, 1, -1))
        quotes = int(seen[-1])
        if len(depths):
            depth, deepest = int(depths[-1]), max(deepest, int(depths.max()))
    return deepest
