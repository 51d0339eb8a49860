"""Traffic: the bytes that a worker sends while layers are gathered and gradients scattered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from farandole.parallel.sharded.units import outside, units


@dataclass
class Traffic:
    """Counts by formula, with N workers that split K bytes (each tensor rounded up to N parts).

    Gathering sends a worker's part to all others, (N-1)·K/N; scattering sums of gradients sends as
    much. R replicas add an all-reduce of the part between them, 2·(R-1)/R·K/N. Gloo may send more:
    its sum is scattered after everybody has all of it.
    """

    forward: int
    """Bytes to gather everything."""
    backward: int
    """Bytes to gather again what was let go of, where a gradient passes through."""
    mistaken: int
    """Bytes of a layer that is gathered in vain, backward after a pass without gradients."""
    reduction: int
    """Bytes to sum gradients."""
    keeps: bool
    """Whether what was gathered stays until the gradient is there."""
    sent: int = 0
    _is_whole: bool = False
    _has_looked: bool = False

    @classmethod
    def of(cls, network: nn.Module, workers: int, replicas: int, *, reshard: bool) -> Traffic:
        """For a network that isn't split yet."""
        groups = [list(unit.parameters()) for unit in units(network)]
        loose = outside(network)
        sizes = [part_bytes(group, workers) for group in (*groups, *([loose] if loose else []))]
        learns = [any(p.requires_grad for p in group) for group in groups]
        first = 0 if any(p.requires_grad for p in loose) else learns.index(True)
        again = sizes[max(first - 1, 0) :]  # torch gathers one layer ahead, needed or not
        learning = part_bytes((p for p in network.parameters() if p.requires_grad), workers)
        return cls(
            forward=(workers - 1) * sum(sizes),
            backward=(workers - 1) * sum(again) if reshard else 0,
            mistaken=(workers - 1) * sizes[-1] if reshard and first == 0 else 0,
            reduction=(workers - 1) * learning + 2 * (replicas - 1) * learning // replicas,
            keeps=not reshard,
        )

    def looked(self) -> None:
        """A forward pass without gradients."""
        self._gather()
        self._has_looked = True

    def learned(self, *, last: bool) -> None:
        """A forward and a backward pass, the last of an update or not."""
        self._gather()
        self.sent += self.backward + (self.reduction if last else 0)
        self.sent += self.mistaken if self._has_looked else 0
        self._has_looked = False

    def resharded(self) -> None:
        """Everything was let go of."""
        self._is_whole = False

    def _gather(self) -> None:
        self.sent += 0 if self._is_whole else self.forward
        self._is_whole = self.keeps


def part_bytes(parameters: Iterable[nn.Parameter], workers: int) -> int:
    """What one of so many workers has of tensors that are split along their first dimension.

    >>> part_bytes([nn.Linear(2, 5).weight], workers=2)  # 3 rows of 2 floats
    24
    """
    return sum(
        -(-parameter.shape[0] // workers) * (parameter.nbytes // max(parameter.shape[0], 1))
        for parameter in parameters
    )
