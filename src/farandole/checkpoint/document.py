"""JSON that gives back exactly what was put in: NaN and infinity too, and integers of any size.

JSON has no NaN and no infinity: they are written as `{"$float": "nan"}`. A key that begins with a
dollar sign gets a second one, so that nobody's data can be taken for that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from farandole.checkpoint.store import Damaged
from farandole.errors import CheckpointError

SIZE_LIMIT = 16 * 2**20
_DEPTH_LIMIT = 100
_FLOAT = "$float"


def encode(document: Mapping[str, Any]) -> bytes:
    """Turn a document into JSON, or say which of its values can't be.

    >>> print(encode({"loss": [0.1, float("inf")]}).decode())
    {
     "loss": [
      0.1,
      {
       "$float": "inf"
      }
     ]
    }
    >>> encode({"state": {"seeds": {1, 2}}})
    Traceback (most recent call last):
    ...
    farandole.errors.CheckpointError: document['state']['seeds'] must be a JSON value: ...
    """
    if not isinstance(document, Mapping):
        raise _not_json("document", document)
    plain = _to_json(document, "document", 0)
    try:
        text = json.dumps(plain, allow_nan=False, indent=1)
    except ValueError as error:  # an integer of more digits than Python would read again
        raise CheckpointError(f"The document of a checkpoint can't be written: {error}") from error
    if len(text) > SIZE_LIMIT:
        raise CheckpointError(
            f"The document of a checkpoint may have {SIZE_LIMIT:,} bytes. Received: {len(text):,}. "
            "Put long lists of numbers into tensors."
        )
    return text.encode("ascii")


def decode(raw: bytes) -> dict[str, Any]:
    """Read what `encode` wrote.

    >>> decode(encode({"seed": 2**70, "loss": float("-inf")}))
    {'seed': 1180591620717411303424, 'loss': -inf}
    """
    try:
        found = json.loads(raw.decode("ascii"), object_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise Damaged(f"holds a {type(found).__name__}, not a JSON object")
    return found


def _to_json(value: Any, where: str, depth: int) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(float(value))}
    if depth == _DEPTH_LIMIT:
        raise CheckpointError(f"The document is more than {depth} levels deep, or holds itself.")
    if isinstance(value, list | tuple):
        return [_to_json(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(value)]
    if not isinstance(value, Mapping):
        raise _not_json(where, value)
    return {
        _key(key, where): _to_json(one, f"{where}[{key!r}]", depth + 1)
        for key, one in value.items()
    }


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise CheckpointError(f"Keys of {where} must be texts. Received: {key!r}")
    return f"${key}" if key.startswith("$") else key


def _object(found: dict[str, Any]) -> Any:
    if found.keys() == {_FLOAT}:
        if found[_FLOAT] not in ("nan", "inf", "-inf"):
            raise ValueError(f"{found[_FLOAT]!r} is no number")
        return float(found[_FLOAT])
    return {key.removeprefix("$"): value for key, value in found.items()}


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _not_json(where: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"{where} must be a JSON value: None, True or False, a number of Python's own, a text, "
        f"a list or a dict. Received: {type(value).__name__}. Tensors go into tensors=."
    )
