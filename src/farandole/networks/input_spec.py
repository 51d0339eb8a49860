"""What a network takes: its dtype, and what its attributes `ragged_axes` and `channels` declare."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import nn

from farandole.arguments import is_integer
from farandole.errors import InputError

VARYING = (
    "Features whose size is meant to vary need a network for that: farandole.networks.RNN, CNN or "
    "GNN, or one of your own with `ragged_axes`."
)


def floating_dtype(network: nn.Module) -> torch.dtype:
    """The floating-point type that a network computes in: that of its first such parameter.

    float32 if there is none, as in a network whose weights have 8 bits.

    >>> floating_dtype(nn.Linear(2, 1).bfloat16()), floating_dtype(nn.Flatten())
    (torch.bfloat16, torch.float32)
    """
    kinds = (one.dtype for one in network.parameters() if one.is_floating_point())
    return next(kinds, torch.float32)


def dtype_name(dtype: torch.dtype) -> str:
    """The name by which torch and NumPy know a type.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def input_dtype(network: nn.Module) -> torch.dtype:
    """The type of a network's first argument: int64 for tokens, else its floating-point type.

    >>> input_dtype(nn.Sequential(nn.Embedding(9, 2), nn.Linear(2, 1)))
    torch.int64
    """
    leaves = (one for one in network.modules() if next(one.children(), None) is None)
    first = next((one for one in leaves if next(one.parameters(), None) is not None), None)
    return torch.int64 if isinstance(first, nn.Embedding) else floating_dtype(network)


def ragged_axes(network: nn.Module) -> tuple[int, ...] | None:
    """How many leading axes of each feature's rows may vary in size; None if it doesn't say.

    A Sequential says what its first layer says.

    >>> from farandole.networks import CNN
    >>> ragged_axes(nn.Sequential(CNN(channels=1, outputs=10), nn.Softmax(1)))
    (2,)
    """
    axes = _attribute(network, "ragged_axes")
    if axes is None or _is_valid(axes):
        return None if axes is None else tuple(axes)
    likely = (axes,) if is_integer(axes, least=0) else (1,)
    raise InputError(
        "A network's ragged_axes must be a tuple with an integer for each feature column: how "
        f"many leading axes of its rows vary in size, such as {likely} for one column. Received: "
        f"ragged_axes = {axes!r}"
    )


def takes_gray(network: nn.Module) -> bool:
    """Whether images are to come without colors.

    >>> from farandole.networks import CNN
    >>> takes_gray(CNN(channels=1, outputs=10)), takes_gray(CNN(channels=3, outputs=10))
    (True, False)
    """
    return bool(_attribute(network, "channels") == 1)


def varying_advice(network: nn.Module) -> str:
    """What to do for rows that vary in size, if the network doesn't take them.

    >>> varying_advice(nn.Linear(2, 1))[:37]
    'Features whose size is meant to vary '
    """
    return wrapping_advice(network) or VARYING


def wrapping_advice(network: nn.Module) -> str:
    """What a network has to declare because of one inside of it; empty where there is none.

    >>> from farandole.networks import RNN
    >>> wrapping_advice(nn.ModuleDict({"inner": RNN(3, 2)}))
    "Its 'inner' (RNN) takes rows ... the attribute `ragged_axes = (1,)`."
    """
    if _attribute(network, "ragged_axes") is not None:
        return ""
    for name, module in network.named_modules():
        axes = getattr(module, "ragged_axes", None)
        if _is_valid(axes):
            gray = " and `channels = 1`" if takes_gray(module) else ""
            return (
                f"Its {name!r} ({type(module).__name__}) takes rows that vary in size, but "
                f"{type(network).__name__} around it has to say so: give that the attribute "
                f"`ragged_axes = {tuple(axes)}`{gray}."
            )
    return ""


def _attribute(network: nn.Module, name: str) -> Any:
    """That of the network, or of the layer that a Sequential hands its rows to."""
    while not hasattr(network, name) and isinstance(network, nn.Sequential) and len(network):
        network = network[0]
    return getattr(network, name, None)


def _is_valid(axes: Any) -> TypeGuard[tuple[int, ...] | list[int]]:
    return (
        isinstance(axes, tuple | list)
        and bool(axes)
        and all(is_integer(axis, least=0) for axis in axes)
    )
