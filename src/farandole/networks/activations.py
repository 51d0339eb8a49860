"""Activations by name: what each computes, where its values lie, which weights suit it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

from farandole.errors import InputError, suggestion

ActivationLike: TypeAlias = str | nn.Module | type[nn.Module]
"""What is taken wherever an activation is: a name, a module, or its class."""


@dataclass(frozen=True)
class Activation:
    """A function of one number that stands between two layers.

    >>> ACTIVATIONS["swish"].formula
    'a·σ(a)'
    """

    kind: type[nn.Module]
    """The layer of torch that computes it."""
    formula: str
    range: str
    initialization: str
    """Which weights keep the signal's size through many layers: see `INITIALIZATIONS`."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Options that the formula calls otherwise than torch does."""


ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation(nn.Identity, "a", "ℝ", "glorot"),
    "sigmoid": Activation(nn.Sigmoid, "1 / (1 + e^−a)", "[0, 1]", "glorot"),
    "tanh": Activation(nn.Tanh, "2σ(2a) − 1", "[−1, 1]", "glorot"),
    "softplus": Activation(nn.Softplus, "log(1 + e^a)", "[0, ∞)", "he"),
    "relu": Activation(nn.ReLU, "max(a, 0)", "[0, ∞)", "he"),
    "leaky_relu": Activation(
        nn.LeakyReLU, "max(a, 0) + α·min(a, 0)", "ℝ", "he", {"alpha": "negative_slope"}
    ),
    "elu": Activation(nn.ELU, "max(a, 0) + min(α(e^a − 1), 0)", "[−α, ∞)", "he"),
    "swish": Activation(nn.SiLU, "a·σ(a)", "[−0.28, ∞)", "he"),
    "gelu": Activation(nn.GELU, "a·Φ(a)", "[−0.17, ∞)", "he"),
}
"""The activations that have a name."""

_SYNONYMS = {"silu": "swish", "leakyrelu": "leaky_relu", "linear": "identity"}

# Not functions of one number, so not in the table: they turn a row of outputs into probabilities.
_OVER_CLASSES = {"softmax": nn.Softmax, "log_softmax": nn.LogSoftmax}


def activation(name: ActivationLike, **options: Any) -> nn.Module:
    """Make an activation.

    Args:
        name: one of `ACTIVATIONS`, "softmax" or "log_softmax" (over the last dimension), or a
            module of your own, which is given back as it is, or its class.
        **options: what the layer of torch takes, such as `alpha` for "elu" and "leaky_relu".

    >>> activation("leaky_relu", alpha=0.2)
    LeakyReLU(negative_slope=0.2)
    >>> activation("rely")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no activation 'rely'. Did you mean 'relu'?
    """
    if isinstance(name, nn.Module):
        if options:
            raise InputError(f"{name} is made already and takes no options. Received: {options}")
        return name
    if inspect.isclass(name) and issubclass(name, nn.Module):
        return _made(name, options)
    if not isinstance(name, str):
        raise InputError(f"An activation is a name or a module of torch. Received: {name!r}")
    known = canonical(name)
    if known in _OVER_CLASSES:
        return _made(_OVER_CLASSES[known], {"dim": -1, **options})
    entry = ACTIVATIONS[known]
    return _made(entry.kind, {entry.renamed.get(key, key): v for key, v in options.items()})


def canonical(name: str) -> str:
    """Give the one name of an activation that is known under several.

    >>> canonical("SiLU"), canonical("leaky-ReLU")
    ('swish', 'leaky_relu')
    """
    plain = name.lower().replace("-", "_").replace(" ", "_")
    known = _SYNONYMS.get(plain, plain)
    if known not in ACTIVATIONS and known not in _OVER_CLASSES:
        names = [*ACTIVATIONS, *_OVER_CLASSES]
        raise InputError(f"There is no activation {name!r}. {suggestion(plain, names)}")
    return known


def name_of(given: ActivationLike) -> str | None:
    """Give the name of an activation that was given as a name or as a class of torch.

    None stands for one that has no name: a class of one's own, or a module, which may differ
    from others of its class.

    >>> name_of("SiLU"), name_of(nn.ReLU), name_of(nn.ReLU())
    ('swish', 'relu', None)
    """
    if isinstance(given, str):
        return canonical(given)
    return next((name for name, entry in ACTIVATIONS.items() if entry.kind is given), None)


def _made(kind: type[nn.Module], options: Mapping[str, Any]) -> nn.Module:
    try:
        return kind(**options)
    except TypeError as error:
        accepted = ", ".join(inspect.signature(kind).parameters) or "none"
        raise InputError(
            f"{kind.__name__} can't be made of {dict(options)}: {error}. Its options: {accepted}."
        ) from error
