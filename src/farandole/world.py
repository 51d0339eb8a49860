"""World: what a worker knows about its process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

LONGEST_WAIT = 24 * 3600.0
"""Seconds that workers wait for others that live, where some may have far more to do."""


class Link(Protocol):
    """A worker's connection to the driver. It may be dead: telling never fails and never blocks."""

    def tell(self, message: object) -> None:
        """Send one picklable message to the driver."""

    def ask(self, message: object) -> Any:
        """Send one, and wait for what the driver's handler returns for it.

        Raises a `ConnectionError` if the driver can't be reached.
        """

    def flush(self, timeout: float = 10.0) -> None:
        """Wait, so many seconds at most, until what was told has left this process."""

    def stop_requested(self) -> bool:
        """Whether the driver asked for an orderly end (Ctrl-C)."""

    def restart_requested(self) -> bool:
        """Whether the driver wants all workers to begin again with more, after this epoch."""

    def preempted(self) -> bool:
        """Whether this worker was told to end by SIGTERM: it has some seconds to come to an end."""


class SilentLink:
    """For a worker without a driver."""

    def tell(self, message: object) -> None:
        """Drop the message."""

    def ask(self, message: object) -> Any:
        """Nobody can answer."""
        raise ConnectionError("this worker has no driver")

    def flush(self, timeout: float = 10.0) -> None:
        """There is nothing to wait for."""

    def stop_requested(self) -> bool:
        """Nobody can ask."""
        return False

    def restart_requested(self) -> bool:
        """Nobody can ask."""
        return False

    def preempted(self) -> bool:
        """Nobody looks."""
        return False


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank, size and neighbours of one worker.

    >>> world = World(rank=1, size=4, local_rank=1, local_size=2)
    >>> world.is_leader, world.right, world.left
    (False, 2, 0)
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    addresses: tuple[str, ...] = ("127.0.0.1",)
    device: str = "cpu"
    timeout: float = 60.0
    """Seconds that a worker waits for others in a collective."""
    secret: bytes = field(default=b"", repr=False, compare=False)
    """What only the workers of this run and their driver know: it signs what they pickle."""
    gathers: Iterator[int] = field(default_factory=count, repr=False, compare=False)
    """Numbers what is gathered and signed: the same on all workers, and never used twice."""
    link: Link = field(default_factory=SilentLink, repr=False, compare=False)
    seconds: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    """What it took to come here, by phase (`read`, `ring-up`)."""

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0, which speaks for all."""
        return self.rank == 0

    @property
    def right(self) -> int:
        """The rank that this one sends to in a ring."""
        return (self.rank + 1) % self.size

    @property
    def left(self) -> int:
        """The rank that this one receives from in a ring."""
        return (self.rank - 1) % self.size


_current: ContextVar[World | None] = ContextVar("farandole_world", default=None)


def current_world() -> World:
    """The world of the worker that calls; a world of one outside of a ring.

    >>> current_world().rank, current_world().size
    (0, 1)
    """
    return _current.get() or World()


@contextmanager
def entered(world: World) -> Iterator[World]:
    """Make `world` the current one for the body of a `with`."""
    token = _current.set(world)
    try:
        yield world
    finally:
        _current.reset(token)
