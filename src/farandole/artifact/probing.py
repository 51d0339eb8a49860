"""How a network takes its columns, found out with rows of zeros."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from farandole.artifact.signature import Signature
from farandole.errors import InputError
from farandole.keras_models import KerasNetwork
from farandole.networks import evaluation_mode, wrapping_advice

Sizes = Mapping[str, Sequence[Sequence[int]]]


def probe_signature(
    network: nn.Module, signature: Signature, sizes: Sizes | None = None
) -> tuple[Signature, list[Any]]:
    """Find the way in which a network takes its columns, by giving it rows of zeros.

    Returns the signature with that way, and the network's outputs. In columns whose rows vary in
    size, the rows have these `sizes`.

    >>> about = Signature(features=("a", "b"), shapes=((), ()), dtypes=("int64", "float32"),
    ...                   head="identity", outputs=1)
    >>> found, _ = probe_signature(nn.Linear(2, 1), about)
    >>> found.stacked
    True
    """
    first_error: Exception | None = None
    for candidate in _candidates(network, signature):
        try:
            output = _outputs(network, candidate, sizes)
        except Exception as error:
            first_error = first_error or error
            continue
        return candidate, list(output) if isinstance(output, tuple | list) else [output]
    raise InputError(_mismatch(network, signature, first_error)) from first_error


def _candidates(network: nn.Module, signature: Signature) -> list[Signature]:
    """The ways to give columns to the network, the most literal first."""
    several = len(signature.features) > _count_positional(network) and not any(signature.axes)
    scalar = signature.shapes == ((),)
    has_integers = any(not dtype.startswith("float") for dtype in signature.dtypes)
    # A forward with *args, as that of a loaded file, may still want all columns in one tensor.
    unknown = (
        len(signature.features) > 1
        and _count_positional(network) >= _ANY
        and not any(signature.axes)
    )
    stacked = [True] if several else [False, True] if scalar or unknown else [False]
    floated = [False, True] if has_integers else [False]
    places = _places(network, signature.features)
    ways = [{"places": places}] if places else [{"stacked": one} for one in stacked]
    found = [replace(signature, floated=f, **way) for f in floated for way in ways]
    return found + [replace(signature, floated=f, by_name=True) for f in floated]


def _places(network: nn.Module, features: Sequence[str]) -> tuple[int, ...]:
    """Where each column goes, if `forward` has an argument of every column's name.

    Empty if it has not, or if columns are in the order of arguments already.
    """
    if isinstance(network, KerasNetwork):
        return _keras_places(network, features)
    parameters = list(inspect.signature(network.forward).parameters.values())
    plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [parameter.name for parameter in plain]
    if not set(features) <= set(names) or len(set(features)) != len(features):
        return ()
    last = max(names.index(name) for name in features)
    used = plain[: last + 1]
    if any(p.name not in features and p.default is not None for p in used):
        return ()
    places = tuple(features.index(p.name) if p.name in features else -1 for p in used)
    return () if places == tuple(range(len(features))) else places


def _keras_places(network: KerasNetwork, features: Sequence[str]) -> tuple[int, ...]:
    """The same for a Keras model, whose inputs have names: all of them, or it goes by order."""
    names = network.input_names or ()
    if len(set(features)) != len(features) or sorted(names) != sorted(features):
        return ()
    places = tuple(features.index(name) for name in names)
    return () if places == tuple(range(len(features))) else places


_ANY = 1 << 20


def _count_positional(network: nn.Module) -> int:
    if isinstance(network, KerasNetwork) and network.input_names is not None:
        return len(network.input_names)
    parameters = list(inspect.signature(network.forward).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return _ANY
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _outputs(network: nn.Module, signature: Signature, sizes: Sizes | None) -> Any:
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with evaluation_mode(network):
        return network(*[_moved(argument, device) for argument in signature.example(sizes=sizes)])


def _moved(argument: Any, device: torch.device) -> Any:
    if isinstance(argument, Mapping):
        return {name: one.to(device) for name, one in argument.items()}
    return None if argument is None else argument.to(device)


def _keras_advice(network: KerasNetwork, signature: Signature) -> str:
    """What the model declares, and that nobody transposes images for it."""
    inputs = zip(network.input_names or (), network.input_shapes or (), strict=True)
    said = ", ".join(f"{name!r} with shape {shape}" for name, shape in inputs)
    advice = f"The Keras model takes {said} a row." if said else ""
    if any(len(shape) == 3 for shape in signature.shapes):
        advice += " Images have their channels last in Keras, as in columns of images."
    return advice.strip()


def _mismatch(network: nn.Module, signature: Signature, error: Exception | None) -> str:
    columns = ", ".join(
        f"{name!r} with shape {shape} of {dtype}"
        for name, shape, dtype in zip(
            signature.features, signature.shapes, signature.dtypes, strict=True
        )
    )
    hints = [
        "Check the size of its first layer, and that forward takes one argument for each column."
    ]
    if any(len(shape) > 1 and None not in shape for shape in signature.shapes):
        hints.append("A network for flat rows needs nn.Flatten() in front.")
    if any(
        None in s and d.startswith("int")
        for s, d in zip(signature.shapes, signature.dtypes, strict=True)
    ):
        hints.append("Tokens need a vocabulary: networks.RNN(…, vocabulary=…).")
    if isinstance(network, KerasNetwork):
        hints = [_keras_advice(network, signature)]
    hints.append(wrapping_advice(network))
    return (
        f"The network ({type(network).__name__}) can't take the feature columns: {columns} a row. "
        f"It says: {error}. {' '.join(hints)}".rstrip()
    )
