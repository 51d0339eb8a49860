"""What a network declares about the rows it takes: its attributes `ragged_axes` and `channels`."""

from __future__ import annotations

from typing import Any, TypeGuard

from torch import nn

from farandole.arguments import is_integer
from farandole.errors import InputError

VARYING = (
    "Features whose size is meant to vary need a network for that: farandole.networks.RNN, CNN or "
    "GNN, or one of your own with `ragged_axes`."
)


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
        "A network's ragged_axes must be a tuple with a whole number for each feature column: how "
        f"many leading axes of its rows vary in size, such as {likely} for one column. Received: "
        f"ragged_axes = {axes!r}"
    )


def takes_gray(network: nn.Module) -> bool:
    """Whether images are to come without colors."""
    return bool(_attribute(network, "channels") == 1)


def varying_advice(network: nn.Module) -> str:
    """What to do for rows that vary in size, if the network doesn't take them."""
    return wrapping_advice(network) or VARYING


def wrapping_advice(network: nn.Module) -> str:
    """What a network has to declare because of one inside of it; empty where there is none."""
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
