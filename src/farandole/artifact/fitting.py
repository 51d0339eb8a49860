"""How a network takes columns: found out by giving it rows of zeros."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from farandole.artifact.signature import Signature
from farandole.errors import InputError
from farandole.networks import wrapping_advice

Sizes = Mapping[str, Sequence[Sequence[int]]]


def fitted(
    network: nn.Module, signature: Signature, sizes: Sizes | None = None
) -> tuple[Signature, list[Any]]:
    """The signature with the way in which the network takes its columns, and what that gives.

    Columns whose rows vary in size have some rows of these `sizes`.

    >>> about = Signature(features=("a", "b"), shapes=((), ()), dtypes=("int64", "float32"),
    ...                   head="identity", outputs=1)
    >>> found, _ = fitted(nn.Linear(2, 1), about)
    >>> found.stacked
    True
    """
    first_error: Exception | None = None
    for candidate in _ways(network, signature):
        try:
            output = _probe(network, candidate, sizes)
        except Exception as error:
            first_error = first_error or error
            continue
        return candidate, list(output) if isinstance(output, tuple | list) else [output]
    raise InputError(_mismatch(network, signature, first_error)) from first_error


def _ways(network: nn.Module, signature: Signature) -> list[Signature]:
    """The ways to give columns to the network, the most literal first."""
    several = len(signature.features) > _positional(network) and not any(signature.axes)
    scalar = signature.shapes == ((),)
    has_integers = any(not dtype.startswith("float") for dtype in signature.dtypes)
    # What takes any number of arguments, as a loaded file does, may still want them in one.
    unsaid = (
        len(signature.features) > 1 and _positional(network) >= _ANY and not any(signature.axes)
    )
    stacked = [True] if several else [False, True] if scalar or unsaid else [False]
    floated = [False, True] if has_integers else [False]
    return [replace(signature, stacked=s, floated=f) for f in floated for s in stacked]


_ANY = 1 << 20


def _positional(network: nn.Module) -> int:
    parameters = list(inspect.signature(network.forward).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return _ANY
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _probe(network: nn.Module, signature: Signature, sizes: Sizes | None) -> Any:
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with only_looking(network):
        return network(*[argument.to(device) for argument in signature.example(sizes=sizes)])


@contextmanager
def only_looking(network: nn.Module) -> Iterator[None]:
    """Apply the network without leaving a trace in it."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)


def floating_of(network: nn.Module) -> str:
    """The precision of a network: that of its first floating-point parameter."""
    for parameter in network.parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.bfloat16:
            return str(parameter.dtype).removeprefix("torch.")
    return "float32"


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
    hints.append(wrapping_advice(network))
    return (
        f"The network ({type(network).__name__}) can't take the feature columns: {columns} a row. "
        f"It says: {error}. {' '.join(hints)}".rstrip()
    )
