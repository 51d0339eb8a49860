"""A network of standard layers ↔ JSON: what lets a saved network load without running code.

Standard are the layers of torch.nn, named "Linear", and the networks of farandole.networks and
farandole.pretrained, all named like "networks.MLP". These names stand in saved folders and don't
change when a class moves to another file.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

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


def network_from_json(description: Any) -> nn.Module:
    """A network with fresh weights; only classes of torch.nn and our networks are ever called."""
    return _build(description)


def filled_network(
    description: Any,
    sizes: Mapping[str, Sequence[int]],
    read: Callable[[], Mapping[str, torch.Tensor]],
) -> nn.Module:
    """The network with weights of its own.

    Args:
        description: what `network_to_json` has made.
        sizes: those of the weights. A network that has others is refused before it takes memory.
        read: gives the weights.
    """
    with torch.device("meta"), _at_most(len(sizes)):
        network = _build(description, most_layers=len(sizes))
    _check_sizes(network, sizes)
    network.load_state_dict(read(), assign=True)
    if any(map(_is_unfilled, network.modules())):  # it has tensors that aren't saved with it
        network = _build(description)
        network.load_state_dict(read(), assign=True)
    return network


def _is_unfilled(module: nn.Module) -> bool:
    """Whether a layer that was built without memory still has tensors without any."""
    inside: list[Any] = [*vars(module).values(), *module._parameters.values()]
    inside += module._buffers.values()
    inside += [one for part in inside if isinstance(part, list | tuple) for one in part]
    return any(isinstance(one, torch.Tensor) and one.is_meta for one in inside)


def _check_sizes(network: nn.Module, sizes: Mapping[str, Sequence[int]]) -> None:
    """Raise unless the network has weights of just these sizes."""
    state = network.state_dict()
    own = {name: tuple(tensor.shape) for name, tensor in state.items()}
    given = {name: tuple(size) for name, size in sizes.items()}
    wrong = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if wrong:
        name = wrong[0]
        raise ArtifactError(
            f"The weights don't fit the network: of {len(wrong)} that differ, {name!r} is "
            f"{given.get(name, 'missing')} in the file, and {own.get(name, 'missing')} in the "
            "network. Take both files from the same folder."
        )
    unsaved = sum(buffer.nbytes for name, buffer in network.named_buffers() if name not in state)
    if unsaved > _MOST_UNSAVED:
        raise ArtifactError(f"The network asks for {unsaved:,} bytes besides its weights.")


_MOST_UNSAVED = 256 << 20


@contextmanager
def _at_most(parameters: int) -> Iterator[None]:
    """Inside, this thread may not make more parameters: none of them would find its weights."""
    thread, made = threading.get_ident(), 0

    def count(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal made
        made += parameter is not None and threading.get_ident() == thread
        if made > 2 * parameters + _SPARE:  # while it is built, a network may replace some
            raise ArtifactError(
                f"The network asks for more than the {parameters} weights that its file has."
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


_SPARE = 1000


def _build(description: Any, most_layers: int | None = None) -> nn.Module:
    try:
        return _built(description, most_layers)
    except ArtifactError:
        raise
    except (KeyError, AttributeError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ArtifactError(f"The description of the network is damaged ({why}).") from error


def _built(description: Any, most_layers: int | None) -> nn.Module:
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
            layers.add_module(key, _built(layer, most_layers))
        return layers
    options = _options(kind, name, description["options"], most_layers)
    try:
        made = kind(**options)
    except ArtifactError:
        raise
    except Exception as error:  # a constructor raises whatever a wrong argument leads it to
        raise ArtifactError(f"The description of a {name} layer is wrong: {error}") from error
    assert isinstance(made, nn.Module)
    return made


def _options(
    kind: type[nn.Module], name: str, given: Mapping[str, Any], most_layers: int | None
) -> dict[str, Any]:
    """The arguments of a layer, if it has such; where it is to be is not for a file to say."""
    known = _constructor(kind)
    for key, value in given.items():
        if key not in known:
            raise ArtifactError(
                f"The description of a {name} layer is wrong: it takes no argument {key!r}."
            )
        is_count = key.endswith("layers") and type(value) is int
        if is_count and most_layers is not None and value > most_layers:
            raise ArtifactError(
                f"The description asks for {key}={value}, and there are {most_layers} weights."
            )
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


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
