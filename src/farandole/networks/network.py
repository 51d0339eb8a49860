"""What the networks of this room share: they remember how they were made, and print it."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from farandole.networks.activations import ActivationLike, activation, name_of
from farandole.ragged import Ragged


class Network(nn.Module):
    """A network that keeps the arguments of its constructor as attributes of the same names.

    >>> from farandole.networks import MLP
    >>> net = MLP([4, 3], activation="tanh")
    >>> isinstance(net, Network), net.layers, net.activation
    (True, (4, 3), 'tanh')
    """

    def _remember(self, **arguments: Any) -> None:
        for name, value in arguments.items():
            if name in ("activation", "output"):
                value = name_of(value) or value
            # Past nn.Module: an activation that was given as a module is a pattern to copy, and
            # not a layer.
            object.__setattr__(self, name, value)

    def extra_repr(self) -> str:
        """Show the arguments that aren't the default ones."""
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if value != parameter.default and not isinstance(value, nn.Module):
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)


def activation_layer(given: ActivationLike) -> nn.Module:
    """Make an activation that belongs to one layer alone, with its own parameters if it has any.

    >>> pattern = nn.PReLU()
    >>> activation_layer(pattern) is pattern
    False
    """
    return copy.deepcopy(activation(given))


def layer_dtype(layer: nn.Module) -> torch.dtype:
    """The type of numbers that a layer takes; one with weights in 8 bits takes float32.

    >>> layer_dtype(nn.Linear(2, 1).double())
    torch.float64
    """
    weight = layer.weight
    return weight.dtype if isinstance(weight, torch.Tensor) else torch.float32


def flat_values(rows: Ragged, features: int, axes: int = 1) -> torch.Tensor | None:
    """Give the elements of all rows as (elements, features); None if they don't have so many.

    One number an element may come without an axis of its own. Where no row has an element, its
    shape isn't known, so none is wrong.

    >>> flat_values(Ragged.of([torch.zeros(2), torch.zeros(3)]), features=1).shape
    torch.Size([5, 1])
    """
    element = tuple(rows.values.shape[1:])
    fits = element == (features,) or (element == () and features == 1) or len(rows.values) == 0
    if rows.axes != axes or not fits:
        return None
    if len(rows.values) == 0:
        return rows.values.new_zeros(0, features)
    return rows.values.reshape(-1, features)


def normalised(norm: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """Apply batch normalisation; a single element is normalised by the running statistics.

    Another kind of normalisation in its place, such as one that asks other workers, is always
    called, because they wait for it.

    >>> normalised(nn.BatchNorm1d(2), torch.ones(1, 2)).shape
    torch.Size([1, 2])
    """
    elements = values.numel() // max(values.shape[1], 1)
    if type(norm) is nn.BatchNorm1d and norm.training and elements < 2:
        return F.batch_norm(
            values, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )
    found: torch.Tensor = norm(values)
    return found


def pixel_scale(pixels: torch.Tensor) -> int:
    """What makes pixels shares of 0 … 1: 255 for integers of any width, else 1.

    >>> pixel_scale(torch.zeros(3, dtype=torch.int64)), pixel_scale(torch.zeros(3))
    (255, 1)
    """
    return 1 if pixels.is_floating_point() or pixels.dtype == torch.bool else 255
