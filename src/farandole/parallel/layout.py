"""Layout: tensors that stand one after the other in flat memory, those of a type together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import nn

Tensor = TypeVar("Tensor", bound=torch.Tensor)


def by_dtype(tensors: Iterable[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """The tensors of each type, in the order in which they come.

    >>> groups = by_dtype([torch.zeros(2), torch.zeros(1, dtype=torch.float64), torch.zeros(3)])
    >>> [len(group) for group in groups.values()]
    [2, 1]
    """
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return groups


def views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The beginning of flat memory, as tensors of these shapes.

    >>> [view.tolist() for view in views(torch.arange(9), [torch.zeros(2, 2), torch.zeros(1)])]
    [[[0, 1], [2, 3]], [4]]
    """
    sizes = [tensor.numel() for tensor in like]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def hold_gradients(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Let the gradients of some parameters be views of flat memory.

    >>> layer, flat = nn.Linear(2, 1), torch.zeros(3)
    >>> hold_gradients(flat, list(layer.parameters()))
    >>> layer(torch.ones(4, 2)).sum().backward()
    >>> flat.tolist()
    [4.0, 4.0, 4.0]
    """
    for parameter, view in zip(parameters, views(flat, parameters), strict=True):
        parameter.grad = view
