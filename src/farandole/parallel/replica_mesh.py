"""ReplicaMesh: replicas of a network side by side, each of them split over neighbouring ranks."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from farandole.world import World


def coordinate_of(rank: int, inner: int) -> tuple[int, int]:
    """Which copy a worker works on, and which part of it: neighbours share a copy.

    >>> [coordinate_of(rank, inner=2) for rank in range(4)]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    return divmod(rank, inner)


class ReplicaMesh:
    """A worker's place, and the groups it belongs to. All workers have to make one together."""

    def __init__(self, world: World, replicas: int = 1) -> None:
        self.replicas = replicas
        self.inner = world.size // replicas
        self.replica, self.index = coordinate_of(world.rank, self.inner)
        self.ranks = self._copy(self.replica)
        """Of the workers that share a copy."""
        self.group: dist.ProcessGroup | None = None
        """Of those workers; None where there is but one copy, and all share it."""
        self.peers: dist.ProcessGroup | None = None
        """Of the workers that have the same part of all copies."""
        if replicas > 1:
            self.group = _one_of([self._copy(number) for number in range(replicas)], world)
            parts = [list(range(index, world.size, self.inner)) for index in range(self.inner)]
            self.peers = _one_of(parts, world)

    def _copy(self, number: int) -> list[int]:
        return list(range(number * self.inner, (number + 1) * self.inner))

    def close(self) -> None:
        """Forget the groups; they end with the ring."""
        self.group = self.peers = None


def _one_of(groups: list[list[int]], world: World) -> dist.ProcessGroup:
    """Make all groups, as torch wants all workers to; give the one that a worker is in."""
    timeout = timedelta(seconds=world.timeout)  # torch's own for a new group is half an hour
    made = [dist.new_group(ranks, timeout=timeout) for ranks in groups]
    own: dist.ProcessGroup = made[next(n for n, one in enumerate(groups) if world.rank in one)]
    return own
