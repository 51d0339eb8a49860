"""Nested plain values and tensors ↔ one JSON document and a flat dict of tensors: no pickle."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from farandole.errors import CheckpointError

_KIND = "$"
"""The key of a JSON object that stands for something that JSON doesn't have."""


def flatten(tree: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The document, in which names stand for tensors, and the tensors by these names.

    >>> document, tensors = flatten({"step": 3, "moments": (torch.ones(2), None)})
    >>> document
    {'step': 3, 'moments': {'$': 'tuple', 'of': [{'$': 'tensor', 'of': 'moments/0'}, None]}}
    >>> {name: tensor.tolist() for name, tensor in tensors.items()}
    {'moments/0': [1.0, 1.0]}
    """
    tensors: dict[str, torch.Tensor] = {}
    return _encode(tree, "", tensors), tensors


def unflatten(document: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The tree that `flatten` was given.

    >>> unflatten(*flatten({"counts": {1: 2.5}, "points": [torch.tensor(7)]}))
    {'counts': {1: 2.5}, 'points': [tensor(7)]}
    """
    if isinstance(document, list):
        return [unflatten(part, tensors) for part in document]
    if not isinstance(document, Mapping):
        return document
    if _KIND not in document:
        return {name: unflatten(part, tensors) for name, part in document.items()}
    return _decode(str(document[_KIND]), document.get("of"), tensors)


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return _plain(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor | np.ndarray):
        name = path if path not in tensors else f"{path}#{len(tensors)}"  # 1 and "1" are two keys
        tensors[name] = torch.as_tensor(value).detach()
        return {_KIND: "array" if isinstance(value, np.ndarray) else "tensor", "of": name}
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, tensors)
    if isinstance(value, list | tuple | deque):
        paths = (f"{path}/{number}" if path else str(number) for number in range(len(value)))
        parts = [_encode(part, at, tensors) for part, at in zip(value, paths, strict=True)]
        return {_KIND: "tuple", "of": parts} if isinstance(value, tuple) else parts
    raise CheckpointError(
        f"{path or 'The state'} is a {type(value).__name__}, which a checkpoint can't hold: only "
        "numbers, texts, tensors, and lists and dicts of them. Train without checkpoint_dir, or "
        "keep that out of the optimizer's or the scheduler's state."
    )


def _plain(value: Any) -> Any:
    """Without subclasses: an IntEnum or a NumPy float would be written as it prints itself."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, torch.Tensor]) -> Any:
    def part(key: Any) -> Any:
        return _encode(value[key], f"{path}/{key}" if path else str(key), tensors)

    if isinstance(value, Counter):
        return {_KIND: "counter", "of": [[_plain(key), part(key)] for key in value]}
    if all(isinstance(key, str) and key != _KIND for key in value):
        return {key: part(key) for key in value}
    return {_KIND: "dict", "of": [[_encode(key, path, tensors), part(key)] for key in value]}


def _decode(kind: str, of: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    match kind:
        case "tensor":
            return tensors[of]
        case "array":
            return tensors[of].numpy()
        case "tuple":
            return tuple(unflatten(part, tensors) for part in of)
        case "dict" | "counter":
            pairs = {unflatten(key, tensors): unflatten(part, tensors) for key, part in of}
            return Counter(pairs) if kind == "counter" else pairs
    raise CheckpointError(f"A checkpoint has a value of the unknown kind {kind!r}.")
