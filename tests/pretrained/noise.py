"""Weights and images out of whole numbers alone, so that anybody's code can be given the same."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def filled(network: Kind) -> Kind:
    """The network in double precision, with weights that keep a signal's size through layers."""
    network.double().eval()
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(_values(name, tensor))
    return network


def noise(*shape: int, start: int = 0) -> torch.Tensor:
    """Numbers of -1 … 1 without a pattern."""
    mask = 0xFFFFFFFF
    found = torch.arange(1, math.prod(shape) + 1) + start * 7919
    for factor, shift in ((0x9E3779B1, 15), (0x85EBCA77, 13), (0xC2B2AE3D, 16)):
        found = found * factor & mask
        found ^= found >> shift
    return (found.double() / 2**31 - 1).reshape(shape)


def _values(name: str, tensor: torch.Tensor) -> torch.Tensor:
    values = noise(*tensor.shape, start=len(name))
    if tensor.dim() > 1:
        return values * math.sqrt(6 / tensor[0].numel())
    return 1 + values / 10 if name.endswith(("running_var", "weight")) else values / 10
