"""Layers by name: what a recipe freezes, or gives a learning rate of its own."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from torch import nn

from farandole.errors import InputError, suggestion


def is_under(name: str, layer: str) -> bool:
    """Whether a module's or a parameter's name is that of a layer, or of something inside of it.

    >>> is_under("blocks.0.weight", "blocks.0"), is_under("blocks.01", "blocks.0")
    (True, False)
    """
    return name == layer or name.startswith(f"{layer}.")


def check_known(option: str, wanted: Iterable[str], network: nn.Module) -> None:
    """Raise for the first name that is neither a layer nor a parameter of the network.

    >>> check_known("freeze", ["bodi"], nn.ModuleDict({"body": nn.Linear(2, 2)}))
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: freeze: the network has no layer 'bodi'. Did you mean 'body'?
    """
    modules = [name for name, _ in network.named_modules(remove_duplicate=False) if name]
    parameters = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    known = [*modules, *parameters]
    for name in wanted:
        if name not in known:
            # A large network has hundreds of layers: say those of the first level only.
            top = list(dict.fromkeys(one.partition(".")[0] for one in known))
            near = get_close_matches(str(name), known, n=1) or top
            raise InputError(
                f"{option}: the network has no layer {name!r}. {suggestion(str(name), near)}"
            )


def learning_layers(network: nn.Module) -> list[str]:
    """The outermost layers of which all parameters learn, by name and kind.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    >>> _ = network[0].requires_grad_(False)
    >>> learning_layers(network)
    ['1 (Sequential)']
    """
    found: dict[str, str] = {}
    for name, module in network.named_modules():
        parameters = list(module.parameters())
        inside = any(is_under(name, one) for one in found)
        if name and parameters and not inside and all(p.requires_grad for p in parameters):
            found[name] = f"{name} ({type(module).__name__})"
    alone = [
        name
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and not any(is_under(name, one) for one in found)
    ]
    return [*found.values(), *alone]


def head_of(network: nn.Module) -> str:
    """The name of the layer that gives the answer.

    It is what the network's attribute `head` names, or is; else the last layer with parameters.

    >>> head_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1)))
    '2'
    """
    head = getattr(network, "head", None)
    if isinstance(head, str):
        check_known(f"head = {head!r}", [head], network)
        return head
    if isinstance(head, nn.Module) and "head" in dict(network.named_children()):
        return "head"
    # A layer under a parametrization, such as weight_norm, keeps its parameters further inside.
    owners = [
        name.split(".parametrizations")[0]
        for name, module in network.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    return owners[-1] if owners else ""
