"""Owners: which layer each parameter that learns belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from farandole.parallel import as_matrix
from farandole.planning import constants


def owned(network: nn.Module) -> dict[str, tuple[nn.Module, list[nn.Parameter]]]:
    """The modules that have parameters of their own, and those, by name.

    A parameter that several modules share belongs to the first of them: it has one gradient.

    >>> first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> second.weight = first.weight
    >>> [len(own) for _, own in owned(nn.Sequential(first, second)).values()]
    [2, 1]
    """
    found: dict[str, tuple[nn.Module, list[nn.Parameter]]] = {}
    seen: set[nn.Parameter] = set()
    for name, module in network.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and p not in seen]
        seen.update(own)
        if own:
            found[name] = module, own
    return found


def low_rank(parameters: Iterable[nn.Parameter]) -> int:
    """Values that PowerSGD sends: two thin matrices in place of each one that is worth it.

    >>> low_rank([nn.Linear(100, 50).weight, nn.Linear(4, 4).weight])
    616
    """
    total = 0
    for parameter in parameters:
        matrix = as_matrix(parameter.shape, constants.LOW_RANK)
        total += parameter.numel() if matrix is None else (matrix[0] + matrix[1]) * matrix[2]
    return total
