"""A network whose layers can be called one by one, and its layers by name."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.export.unflatten import InterpreterModule

from farandole.artifact import OnnxNetwork, Program, ScriptNetwork
from farandole.errors import InputError, suggestion

_MOST_LISTED = 40


def eager(network: nn.Module) -> nn.Module:
    """The network as modules that are called one by one; an exported program is unfolded."""
    if not isinstance(network, nn.Module):
        raise InputError(f"A torch network is needed. Received: a {type(network).__name__}")
    if isinstance(network, torch.jit.ScriptModule | ScriptNetwork):
        raise InputError(
            "A TorchScript network is compiled and runs as a whole: it can't be left at one of its "
            "layers. Give the module that it was made of, or export it with torch.export."
        )
    if isinstance(network, OnnxNetwork):
        raise InputError(
            "An ONNX model is a graph without torch's layers: it can't be left at one. Give the "
            "network that it was made of, or cut the file with ONNX's own tools."
        )
    if not isinstance(network, Program):
        return _plain(network)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: nn.Module = torch.export.unflatten(network._exported)
    except Exception as error:
        raise InputError(
            "The layers of this exported program can't be told apart "
            f"({type(error).__name__}: {str(error)[:200]}). Load its weights into your own class: "
            "Artifact.load(path, network=MyNetwork())."
        ) from error
    return found


def layer_of(network: nn.Module, name: str) -> nn.Module:
    """The layer of that name."""
    if name:
        try:
            return network.get_submodule(name)
        except AttributeError:
            pass
    found = [key for key, _ in network.named_modules(remove_duplicate=False) if key]
    if not found:
        raise InputError(
            f"This {type(network).__name__} has no layers inside: apply it as it is. "
            f"Received: layer={name!r}"
        )
    shown = ", ".join(found[:_MOST_LISTED])
    more = len(found) - _MOST_LISTED
    rest = f" and {more} more, which farandole.features.layers(network) lists" if more > 0 else ""
    hint = suggestion(name, found)
    advice = f" {hint}" if hint.startswith("Did") else ""
    raise InputError(f"There is no layer {name!r}.{advice} The layers are {shown}{rest}.")


def kind_of(module: nn.Module) -> str:
    """The name of its class, which an exported program still remembers."""
    remembered = module.type_name() if isinstance(module, InterpreterModule) else None
    return str(remembered).rpartition(".")[2] if remembered else type(module).__name__


def _plain(network: nn.Module) -> nn.Module:
    """What torch.compile was given: compiled code doesn't stop at a layer either."""
    inside = getattr(network, "_orig_mod", network)
    assert isinstance(inside, nn.Module)
    return inside
