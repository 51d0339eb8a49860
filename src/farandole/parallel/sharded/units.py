"""Units: the modules whose parameters a sharded network gathers together, and their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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


def parameters_outside(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that are in no unit.

    >>> parameters_outside(nn.Sequential(nn.Linear(2, 3)))
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


@dataclass
class Traffic:
    """Counts by formula, with N workers that split K bytes (each tensor rounded up to N parts).

    Gathering sends a worker's part to all others, (N-1)·K/N; scattering sums of gradients sends as
    much. R replicas add an all-reduce of the part between them, 2·(R-1)/R·K/N. Gloo may send more:
    its sum is scattered after all workers have all of it.
    """

    forward: int
    """Bytes to gather everything."""
    backward: int
    """Bytes to gather again what was freed, where a gradient passes through."""
    wasted: int
    """Bytes of a layer that is gathered in vain, backward after a pass without gradients."""
    reduction: int
    """Bytes to sum gradients."""
    keeps_gathered: bool
    """Whether what was gathered stays until the gradient is there."""
    sent: int = 0
    _is_whole: bool = False
    _had_forward_only: bool = False

    @classmethod
    def of(cls, network: nn.Module, workers: int, replicas: int, *, reshard: bool) -> Traffic:
        """For a network that isn't split yet."""
        groups = [list(unit.parameters()) for unit in units(network)]
        loose = parameters_outside(network)
        sizes = [part_bytes(group, workers) for group in (*groups, *([loose] if loose else []))]
        learns = [any(p.requires_grad for p in group) for group in groups]
        first = 0 if any(p.requires_grad for p in loose) else learns.index(True)
        again = sizes[max(first - 1, 0) :]  # torch gathers one layer ahead, needed or not
        learning = part_bytes((p for p in network.parameters() if p.requires_grad), workers)
        return cls(
            forward=(workers - 1) * sum(sizes),
            backward=(workers - 1) * sum(again) if reshard else 0,
            wasted=(workers - 1) * sizes[-1] if reshard and first == 0 else 0,
            reduction=(workers - 1) * learning + 2 * (replicas - 1) * learning // replicas,
            keeps_gathered=not reshard,
        )

    def count_forward(self) -> None:
        """A forward pass without gradients."""
        self._gather()
        self._had_forward_only = True

    def count_backward(self, *, last: bool) -> None:
        """A forward and a backward pass, the last of an update or not."""
        self._gather()
        self.sent += self.backward + (self.reduction if last else 0)
        self.sent += self.wasted if self._had_forward_only else 0
        self._had_forward_only = False

    def count_reshard(self) -> None:
        """Everything gathered was freed."""
        self._is_whole = False

    def _gather(self) -> None:
        self.sent += 0 if self._is_whole else self.forward
        self._is_whole = self.keeps_gathered


def part_bytes(parameters: Iterable[nn.Parameter], workers: int) -> int:
    """What one of so many workers has of tensors that are split along their first dimension.

    >>> part_bytes([nn.Linear(2, 5).weight], workers=2)  # 3 rows of 2 floats
    24
    """
    return sum(
        -(-parameter.shape[0] // workers) * (parameter.nbytes // max(parameter.shape[0], 1))
        for parameter in parameters
    )
