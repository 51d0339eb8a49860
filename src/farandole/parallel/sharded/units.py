"""Units: the modules whose parameters a sharded network gathers and lets go of together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

_CONTAINERS = nn.ModuleList | nn.ModuleDict


def units(network: nn.Module) -> list[nn.Module]:
    """The modules that are sharded each by itself; what is in none of them goes with the network.

    They are what stands in the outermost `nn.Sequential` and `nn.ModuleList`: such modules are used
    one after the other, so only one or two of them have to be whole at a time. A module whose
    parameters differ in type is opened, because one message has one type. A module that shares
    parameters with others is none: they are gathered with the network.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Sequential(nn.Linear(3, 1)))
    >>> [type(unit).__name__ for unit in units(network)]
    ['Linear', 'Linear']
    """
    everywhere = _uses(network)
    found = dict.fromkeys(_candidates(network))
    return [module for module in found if _uses(module).items() <= everywhere.items()]


def outside(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that are in no unit.

    >>> outside(nn.Sequential(nn.Linear(2, 3)))
    []
    """
    inside = {parameter for unit in units(network) for parameter in unit.parameters()}
    return [parameter for parameter in network.parameters() if parameter not in inside]


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """How often each parameter stands in a module."""
    return Counter(p for _, p in module.named_parameters(remove_duplicate=False))


def _candidates(module: nn.Module) -> Iterator[nn.Module]:
    in_turn = isinstance(module, nn.Sequential | nn.ModuleList) or _is_mixed(module)
    for child in module.children():
        if next(child.parameters(), None) is None:
            continue
        if in_turn and not _is_opened(child):
            yield child
        else:
            yield from _candidates(child)


def _is_opened(module: nn.Module) -> bool:
    """Whether it is the modules inside that count: this one does nothing but call them."""
    if isinstance(module, _CONTAINERS) or type(module) is nn.Sequential:
        return True
    return _is_mixed(module) and next(module.children(), None) is not None


def _is_mixed(module: nn.Module) -> bool:
    return len({parameter.dtype for parameter in module.parameters()}) > 1
