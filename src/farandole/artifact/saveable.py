"""Whether a network can be saved as data, found out before it is trained."""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any

import cloudpickle
import torch
from torch import nn

from farandole.artifact.network_json import network_to_json
from farandole.artifact.program import check_exportable
from farandole.artifact.signature import Signature
from farandole.errors import ArtifactError
from farandole.keras_models import KerasNetwork, RefusedConfig, describe

_tried: dict[str, str] = {}
"""What became of networks that were tried before, such as those of a grid's other folds."""
_MOST_TRIED = 100
_BLAMED = re.compile(r'The following call.*?File "([^"]+)", line (\d+)', re.DOTALL)


def why_unsaveable(network: nn.Module, signature: Signature) -> str:
    """Why the network could be saved as a pickle only; "" if it can be saved as data.

    Layers that JSON can describe take no time. All else is exported here, without its weights.

    >>> signature = Signature(features=("x",), shapes=((4,),), dtypes=("float32",),
    ...                       head="softmax", outputs=3)
    >>> why_unsaveable(nn.Sequential(nn.Linear(4, 3)), signature)
    ''
    """
    if isinstance(network, KerasNetwork):
        return _why_no_keras_data(network, signature)
    if network_to_json(network) is not None:
        return ""
    if any(signature.axes):
        return not_data("it takes rows that differ in size, which no exported program can")
    key = _key(network, signature)
    if key not in _tried:
        if len(_tried) >= _MOST_TRIED:
            _tried.clear()
        _tried[key] = _try_export(network, signature)
    return _tried[key]


def _why_no_keras_data(network: KerasNetwork, signature: Signature) -> str:
    try:
        describe(network)
    except RefusedConfig as error:
        found = _try_export(network, signature)
        return f"has a config that {error}, and {found}" if found else ""
    return ""


class _WithoutNumbers(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles the code and the attributes of a network, and of its tensors what they are like."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), str(value.dtype), value.requires_grad
        return None


def _key(network: nn.Module, signature: Signature) -> str:
    content = io.BytesIO()
    _WithoutNumbers(content).dump((network, signature))
    return hashlib.sha256(content.getvalue()).hexdigest()


def _try_export(network: nn.Module, signature: Signature) -> str:
    try:
        check_exportable(network, signature)
    except Exception as error:  # torch raises whatever the network's code leads it to
        return not_data(in_short(error))
    return ""


def not_data(why: str) -> str:
    """What is wrong with a network that can't be saved as data, as the rest of a sentence."""
    return (
        "is neither one of farandole.networks, nor a Sequential of those and of torch.nn layers, "
        f"nor exportable by torch.export ({why})"
    )


def in_short(error: Exception) -> str:
    """An error within a sentence, with the line of the user's that torch blames.

    >>> blame = 'The following call raised this error: File "/my/net.py", line 3, in forward'
    >>> in_short(ValueError("no\\n" + blame))
    'ValueError: no, at /my/net.py, line 3'
    """
    if isinstance(error, ArtifactError):
        return str(error)
    first = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    line = _BLAMED.search(str(error))
    return f"{first}, at {line[1]}, line {line[2]}" if line else first
