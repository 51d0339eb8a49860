"""A network of standard layers ↔ JSON: what lets a saved network load without running code.

Standard are the layers of torch.nn, named "Linear", and the networks of farandole.networks and
farandole.pretrained, all named like "networks.MLP". These names stand in saved folders and don't
change when a class moves to another file.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from farandole import networks, pretrained
from farandole.errors import ArtifactError

_OURS: dict[str, type[nn.Module]] = {
    f"networks.{kind.__name__}": kind
    for kind in (
        networks.CNN,
        pretrained.EfficientNetLite0,
        networks.GNN,
        pretrained.InceptionV3,
        networks.MLP,
        pretrained.MobileNetV2,
        pretrained.ResNet,
        networks.RNN,
        pretrained.SentenceEncoder,
    )
}
_MISSING = object()
_SKIPPED = ("self", "device", "dtype", "mode")


def network_to_json(network: nn.Module) -> dict[str, Any] | None:
    """The network as JSON, or None if it is more than standard layers and Sequentials of them.

    >>> network_to_json(nn.Sequential(nn.Linear(4, 3)))["layers"]["0"]["options"]["out_features"]
    3
    >>> network_to_json(networks.MLP([4, 3]))["class"]
    'networks.MLP'
    """
    description = _describe(network)
    if description is None:
        return None
    try:
        same = _alike(network_from_json(description), network)
    except Exception:  # a layer whose attributes don't tell all that its constructor needs
        return None
    return description if same else None


def network_from_json(description: dict[str, Any]) -> nn.Module:
    """A network with fresh weights; only classes of torch.nn and our networks are ever called."""
    try:
        return _build(description)
    except (KeyError, AttributeError) as error:
        raise ArtifactError(f"The description of the network is damaged: {error}") from error


def _build(description: dict[str, Any]) -> nn.Module:
    name = description["class"]
    kind = _OURS[name] if name in _OURS else getattr(nn, name, None)
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise ArtifactError(
            f"The description names {name!r}, which is not a layer of torch.nn, and none of "
            f"{', '.join(_OURS)}."
        )
    if kind is nn.Sequential:
        layers = nn.Sequential()
        for key, layer in description["layers"].items():
            layers.add_module(key, _build(layer))
        return layers
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in description["options"].items()
    }
    try:
        made = kind(**options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArtifactError(f"The description of a {name} layer is wrong: {error}") from error
    assert isinstance(made, nn.Module)
    return made


def _describe(module: nn.Module) -> dict[str, Any] | None:
    kind = type(module)
    name = _name(kind)
    if name is None or any(_is_altered(part) for part in module.modules()):
        return None
    if kind is nn.Sequential:
        layers = {name: _describe(child) for name, child in module.named_children()}
        complete = len(layers) == len(module) and all(layers.values())  # type: ignore[arg-type]
        return {"class": name, "layers": layers} if complete else None
    options = {}
    for option, parameter in _constructor(kind).items():
        value = _option(module, option)
        if value is _MISSING:
            if parameter.default is inspect.Parameter.empty or name in _OURS:
                return None  # ours keep all their arguments: this one is more than JSON can hold
            continue
        options[option] = value
    return {"class": name, "options": options}


def _name(kind: type[nn.Module]) -> str | None:
    """The name of a standard layer, None for any other."""
    name: str = kind.__name__
    if getattr(nn, name, None) is kind:
        return name
    return f"networks.{name}" if _OURS.get(f"networks.{name}") is kind else None


def _constructor(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The named arguments of a layer; LSTM and GRU keep theirs in their base class."""
    for cls in kind.__mro__:
        if "__init__" not in vars(cls) or cls is nn.Module:
            continue
        found = inspect.signature(cls).parameters.values()
        named = {
            p.name: p
            for p in found
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in _SKIPPED
        }
        if named or not any(p.kind is p.VAR_POSITIONAL for p in found):
            return named
    return {}


def _option(module: nn.Module, name: str) -> Any:
    value = getattr(module, name, _MISSING)
    if name == "bias" and (value is None or isinstance(value, torch.Tensor)):
        return value is not None
    plain = isinstance(value, bool | int | float | str | tuple | list) or value is None
    return value if plain else _MISSING


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Same layers, same hyper-parameters (a layer's repr shows them), same weights to fill in."""

    def kinds(network: nn.Module) -> dict[str, type[nn.Module]]:
        return {name: type(part) for name, part in network.named_modules(remove_duplicate=False)}

    def shapes(network: nn.Module) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in network.state_dict().items()}

    return repr(one) == repr(other) and kinds(one) == kinds(other) and shapes(one) == shapes(other)


def _is_altered(module: nn.Module) -> bool:
    """Whether calling this instance does more than its class says."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks) or "forward" in vars(module)
