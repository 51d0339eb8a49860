"""The network that a plan is for, by whatever it is called, and rows to try it on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from farandole.arguments import is_integer
from farandole.artifact import LoadedNetwork, load_network
from farandole.errors import InputError
from farandole.networks import MLP, input_dtype, ragged_axes
from farandole.ragged import Ragged

_KINDS = (
    'a torch.nn.Module, the folder of a saved network, "mlp:784,100,10", or "module:function" with '
    "a function that makes one"
)


def find(network: Any) -> LoadedNetwork:
    """The network that is meant.

    >>> find("mlp:4,3").network.layers
    (4, 3)
    """
    if isinstance(network, str | os.PathLike):
        found = _named(os.fspath(network))
    else:
        found = load_network(network, argument="network", kinds=_KINDS)
    if any(map(is_lazy, found.network.parameters())):
        raise InputError(
            "The network has lazy layers, whose size nobody knows yet. Let some rows go through it "
            "first: network(rows)."
        )
    return found


def rows_of(subject: LoadedNetwork, rows: int, shape: Sequence[int] | None) -> list[Any]:
    """What `forward` takes for so many rows, all zero.

    >>> [tuple(argument.shape) for argument in rows_of(find("mlp:4,3"), 8, None)]
    [(8, 4)]
    """
    network, signature = subject
    if shape is None and signature is not None:
        return list(signature.example(rows=rows))
    known = _checked(shape) if shape is not None else _guess(network)
    kind = input_dtype(network)
    axes = ragged_axes(network)
    is_image = len(known) == 3 and known[0] == getattr(network, "channels", None)
    if axes is None or is_image:
        return [torch.zeros((rows, *known), dtype=kind)]
    return [Ragged.of([torch.zeros(known, dtype=kind)] * rows, axes=axes[0])]


def _checked(shape: Any) -> tuple[int, ...]:
    wanted = "shape must be the positive sizes of one row, such as (3, 224, 224)"
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise InputError(f"{wanted}. Received: shape={shape!r}")
    sizes = tuple(shape)
    if not all(map(is_integer, sizes)):
        raise InputError(f"{wanted}. Received: shape={shape!r}")
    return sizes


def _named(name: str) -> LoadedNetwork:
    kind, _, rest = name.partition(":")
    if kind.lower() == "mlp":
        try:
            return LoadedNetwork(MLP([int(width) for width in rest.split(",")]))
        except ValueError as error:
            raise InputError(
                f'network="mlp:…" needs widths: {error}. Received: {name!r}'
            ) from error
    if Path(name).is_dir():
        return load_network(name)
    if rest:
        return _made(kind, rest, name)
    raise InputError(f"network must be {_KINDS}. There is no folder {name!r}.")


def _made(module: str, function: str, name: str) -> LoadedNetwork:
    try:
        made = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"network={name!r} can't be found: {error}") from error
    try:
        found = made() if callable(made) and not isinstance(made, nn.Module) else made
    except TypeError as error:
        raise InputError(
            f"network={name!r} must be something that can be called without arguments. It says: "
            f"{error}. Write a function that makes the network, and name that."
        ) from error
    if not isinstance(found, nn.Module):
        raise InputError(f"{name} must give a torch.nn.Module. It gave: {type(found).__name__}")
    return LoadedNetwork(found)


def _guess(network: nn.Module) -> tuple[int, ...]:
    """Only a linear layer says all there is to know."""
    first = next((m for m in network.modules() if any(True for _ in m.parameters(False))), None)
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    kind = type(first or network).__name__
    raise InputError(
        f"The network begins with {kind}, which doesn't say how large a row is. Give its shape: "
        "shape=(3, 224, 224), or --shape 3,224,224."
    )
