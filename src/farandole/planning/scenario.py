"""Scenario: a network on so many workers, and the cost of a step there."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from farandole.parallel import LocalSGD
from farandole.planning import memory
from farandole.planning.cluster import Cluster, straggler_factor
from farandole.planning.profile import Bucket, Profile
from farandole.planning.simulate import CollectiveCost, ring_collective

_MOST_SIZES = 6
"""Buckets of so many sizes are simulated; between those, time over bytes is a line."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A network on so many workers of a cluster."""

    profile: Profile
    cluster: Cluster
    workers: int
    precision: str = "float32"
    overlap: bool = True
    """Whether gradients travel during the backward pass under strategies that can do so."""
    servers: int = 8
    """Parameter servers, where there are several."""
    local_steps: int = LocalSGD.every
    micro_batches: int | None = None
    """Of a pipeline; None: four a stage."""
    network: nn.Module | None = field(default=None, compare=False)
    """Whose profile it is, if that is known: strategies can then say whether it will do."""

    @property
    def straggler(self) -> float:
        """How much longer the slowest worker takes."""
        return straggler_factor(self.workers, self.cluster.jitter)

    @property
    def width(self) -> float:
        """Bytes of one value of a gradient."""
        return memory.widths(self.precision).gradient

    @property
    def gradients(self) -> float:
        """Bytes of all gradients."""
        return self.profile.parameters * self.width

    @property
    def half(self) -> float:
        """Bytes of all gradients in 16 bits."""
        return self.profile.parameters * min(2.0, self.width)

    @property
    def low_rank(self) -> float | None:
        """Bytes that PowerSGD sends of all gradients; None if nobody knows."""
        known = [layer.low_rank for layer in self.profile.layers]
        if all(one is None for one in known):
            return None
        values = [
            layer.parameters if layer.low_rank is None else layer.low_rank
            for layer in self.profile.layers
        ]
        return sum(values) * self.width

    @property
    def held(self) -> float:
        """Bytes of parameters, gradients, optimizer state and activations, nothing split."""
        return memory.sharded(self.profile.parameters, 1, 0, self.precision) + self.profile.kept

    @property
    def passes(self) -> float:
        """Seconds of the forward and the backward pass of the slowest worker."""
        return (self.profile.forward + self.profile.backward) * self.straggler

    @cached_property
    def buckets(self) -> list[Bucket]:
        """Gradients that travel together, in the order of the backward pass."""
        return self.profile.buckets(self.width)

    @cached_property
    def sizes(self) -> tuple[float, ...]:
        """Bytes of all messages that strategies will ask for."""
        parts = sorted({bucket.values * self.width for bucket in self.buckets})
        if len(parts) > _MOST_SIZES:
            last = len(parts) - 1
            parts = [parts[round(n * last / (_MOST_SIZES - 1))] for n in range(_MOST_SIZES)]
        whole = (self.gradients, self.half, (self.low_rank or self.gradients) / 2)
        return tuple(sorted({*parts, *whole}))

    @property
    def ring(self) -> CollectiveCost:
        """A ring through all workers."""
        return ring_collective(self.workers, self.cluster, self.sizes)


@dataclass(frozen=True)
class StepCost:
    """What a step costs each worker."""

    seconds: float
    sent: float
    """Bytes, of the worker that sends most."""
    memory: float
    """Bytes, of the worker that needs most."""
    overlaps: bool = False
    """Whether anything is sent while passes run."""
