"""Hybrid: copies of a network side by side, each of them split over several workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import nn

from farandole.arguments import is_integer
from farandole.errors import InputError
from farandole.parallel.base import Strategy, Synchronizer
from farandole.parallel.pipeline.strategy import Pipeline
from farandole.world import World


class Replicable(Strategy, Protocol):
    """A strategy that splits a network, and can do so for several copies at once."""

    def attach_replicated(
        self, network: nn.Module, world: World, example: Sequence[Any] = (), *, replicas: int
    ) -> Synchronizer:
        """Split each of `replicas` copies over world.size / replicas neighbours.

        Rank r has part r % inner of copy r // inner. Gradients are summed over copies too.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Data parallelism between groups of neighbours, model parallelism inside of each.

    The workers of a copy are neighbours (ranks 0 and 1, 2 and 3 …), hence on one host where they
    can be: it is there that most is sent. By name, "hybrid" is 2 copies of a pipeline.

    Args:
        data: how many copies of the network.
        inner: how each copy is split over its workers, `Pipeline(...)` or `Sharded(...)`.

    >>> Hybrid(data=2, inner=Pipeline(micro_batches=8)).check(nn.Linear(2, 1), workers=5)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: 5 workers can't be split into 2 copies of 2 or more workers \
each. Use 4 or 6 workers, or another data= in strategy=Hybrid(data=2, inner=Pipeline(...)).
    """

    name: ClassVar[str] = "hybrid"

    data: int = 2
    inner: Replicable = field(default_factory=Pipeline)

    @property
    def is_exact(self) -> bool:
        """As what is inside."""
        return self.inner.is_exact

    @property
    def is_whole(self) -> bool:
        """As what is inside."""
        return self.inner.is_whole

    @property
    def splits_tensors(self) -> bool:
        """As what is inside."""
        return self.inner.splits_tensors

    def check(self, network: nn.Module, workers: int) -> None:
        """Raise unless the workers can be split into copies, and a copy over its workers."""
        if not is_integer(self.data, least=2):
            raise InputError(
                "data must be the number of copies, at least 2. For one copy, use what is inside "
                f"as the strategy itself. Received: data={self.data!r}"
            )
        if not hasattr(self.inner, "attach_replicated"):
            raise InputError(
                "inner must be a strategy that splits the network, such as Pipeline(...) or "
                f"Sharded(...). Received: inner={self.inner!r}"
            )
        if workers % self.data or workers < 2 * self.data:
            below = max(workers // self.data, 2) * self.data
            some = f"{below}" if below > workers else f"{below} or {below + self.data}"
            raise InputError(
                f"{workers} workers can't be split into {self.data} copies of 2 or more workers "
                f"each. Use {some} workers, or another data= in strategy=Hybrid(data={self.data}, "
                f"inner={type(self.inner).__name__}(...))."
            )
        self.inner.check(network, workers // self.data)

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        """Let the inner strategy split each copy."""
        self.check(network, world.size)  # there may be fewer workers than were asked for
        return self.inner.attach_replicated(network, world, example, replicas=self.data)
