"""Freezing layers by name, for all epochs or for the first ones.

A frozen parameter gets no gradient, no weight decay and no optimizer state. A layer with only
frozen parameters stays in evaluation mode while the others train, so that the running statistics
of batch normalization don't change and dropout is off. So do layers without parameters inside of
one that is named. What was frozen before (`requires_grad=False`) stays as it is, in its own mode.
After unfreezing, batch normalization learns its weights but keeps its running statistics: batches
of few rows would harm them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from farandole.arguments import ALL_BUT_HEAD, is_integer
from farandole.errors import InputError, suggestion

if TYPE_CHECKING:
    from farandole.training.recipe import Recipe

Freeze = str | Sequence[str] | None
NOTHING_TO_TRAIN = "The network has no parameters to train (all of them are frozen)."


@dataclass
class Frozen:
    """What a recipe has frozen of one network."""

    parameters: list[nn.Parameter]
    layers: list[nn.Module]
    """Those that stay in evaluation mode."""

    @classmethod
    def of(cls, network: nn.Module, freeze: Freeze) -> Frozen:
        """Freeze a part of the network; None freezes nothing.

        >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> frozen = Frozen.of(network, "all but head")
        >>> [p.requires_grad for p in network.parameters()]
        [False, False, True, True]
        >>> frozen.unfreeze()
        >>> all(p.requires_grad for p in network.parameters())
        True
        """
        found = cls(_parameters(network, freeze), frozen_layers(network, freeze))
        for parameter in found.parameters:
            parameter.requires_grad_(False)
        return found

    def set_eval_mode(self) -> None:
        """Put frozen layers into evaluation mode, after `network.train()`."""
        frozen = set(self.layers)
        for layer in self.layers:
            if frozen.issuperset(layer.modules()):
                layer.eval()
            else:  # not those inside
                layer.training = False

    def unfreeze(self) -> None:
        """Let everything learn that could before; batch normalization keeps its statistics."""
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.parameters = []
        self.layers = [layer for layer in self.layers if isinstance(layer, _NormBase)]


def frozen_layers(network: nn.Module, freeze: Freeze) -> list[nn.Module]:
    """The layers whose parameters are all frozen, and all inside of those that are named."""
    if freeze is None:
        return []
    modules = [(name, module) for name, module in network.named_modules() if name]
    if freeze == ALL_BUT_HEAD:
        head = head_of(network)
        if not head:  # the network itself
            return []
        return [m for name, m in modules if not is_under(name, head) and not is_under(head, name)]
    frozen = set(_parameters(network, freeze))
    found: dict[nn.Module, None] = {}
    for name, module in modules:
        own = set(module.parameters())
        learns = any(p.requires_grad and p not in frozen for p in own)
        if any(is_under(name, layer) for layer in freeze) or (own & frozen and not learns):
            found[module] = None
    return list(found)


def _parameters(network: nn.Module, freeze: Freeze) -> list[nn.Parameter]:
    """The parameters to freeze: of those that several layers share, one layer decides."""
    if freeze is None:
        return []
    named = list(network.named_parameters(remove_duplicate=False))
    if freeze == ALL_BUT_HEAD:
        head = head_of(network)
        kept = {p for name, p in named if is_under(name, head)} if head else {p for _, p in named}
        chosen = [p for _, p in named if p not in kept]
    else:
        chosen = [p for name, p in named if any(is_under(name, layer) for layer in freeze)]
    return [p for p in dict.fromkeys(chosen) if p.requires_grad]


def check_layers(network: nn.Module, recipe: Recipe) -> None:
    """Raise if the recipe names layers that the network hasn't, or to no effect.

    >>> from farandole.training.recipe import Recipe
    >>> check_layers(nn.Linear(2, 1), Recipe(freeze="all but head"))
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is nothing to freeze: the head has all parameters that learn.
    """
    freeze, rates = recipe.freeze, recipe.learning_rates
    if freeze is not None and freeze != ALL_BUT_HEAD:
        check_known("freeze", freeze, network)
    if rates is not None:
        check_known("learning_rates", rates, network)
    learning = {p for p in network.parameters() if p.requires_grad}
    frozen = set(_parameters(network, freeze))
    if freeze is not None:
        if learning and not learning - frozen:
            raise InputError(f"{NOTHING_TO_TRAIN} freeze={freeze!r} leaves none.")
        if not frozen and not frozen_layers(network, freeze):
            where = "the head has" if freeze == ALL_BUT_HEAD else f"outside of {freeze!r} are"
            raise InputError(f"There is nothing to freeze: {where} all parameters that learn.")
    if rates is not None:
        _check_rates(network, recipe, learning if recipe.unfreeze_at else learning - frozen)


def _check_rates(network: nn.Module, recipe: Recipe, learning: set[nn.Parameter]) -> None:
    named, rates = network.named_parameters(), recipe.learning_rates or {}
    used = {innermost(name, rates) for name, parameter in named if parameter in learning}
    for layer in rates:
        if layer not in used:
            raise InputError(
                f"learning_rates: nothing in {layer!r} learns at that rate, because its parameters "
                "are frozen, or have rates of their own. Leave it out."
            )
    if None not in used and recipe.learning_rate != type(recipe)().learning_rate:
        raise InputError(
            "learning_rates cover all parameters that learn, so nothing has learning_rate. "
            f"Received: learning_rate={recipe.learning_rate}. Leave it out, or a layer."
        )


def innermost(name: str, layers: Mapping[str, Any]) -> str | None:
    """The innermost of these layers that a parameter belongs to; None if it is in none.

    >>> innermost("blocks.0.weight", {"blocks": 0.1, "blocks.0": 0.2})
    'blocks.0'
    """
    return max((layer for layer in layers if is_under(name, layer)), key=len, default=None)


def check_options(recipe: Recipe) -> None:
    """Raise for options of freezing that make no sense for any network."""
    freeze, at = recipe.freeze, recipe.unfreeze_at
    if isinstance(freeze, str) and freeze != ALL_BUT_HEAD:
        raise InputError(
            f"freeze must be {ALL_BUT_HEAD!r} or a list of layer names. Received: "
            f"freeze={freeze!r}. For a layer of that name: freeze=[{freeze!r}]"
        )
    if freeze is not None and not isinstance(freeze, str) and not _are_names(freeze):
        raise InputError(
            f"freeze must be {ALL_BUT_HEAD!r} or a list of layer names, at least one. Received: "
            f"freeze={freeze!r}"
        )
    if freeze is None and (at is not None or not recipe.cache_features):
        name = "cache_features" if at is None else "unfreeze_at"
        raise InputError(
            f"{name} is for layers that are frozen: only with freeze. "
            f"Received: {name}={getattr(recipe, name)!r}"
        )
    if at is not None and not is_integer(at, least=2, most=recipe.epochs):
        raise InputError(
            "unfreeze_at must be the first epoch in which everything learns, counted from 1: at "
            f"least 2, and at most epochs={recipe.epochs}. Received: unfreeze_at={at!r}"
        )


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, Sequence) and bool(value) and all(isinstance(one, str) for one in value)
    )


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
            # A large network has hundreds of layers: name those of the first level only.
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
