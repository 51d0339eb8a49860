"""What an engine is: a way to run one task on N workers that can talk to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from farandole.world import LONGEST_WAIT, World

DEFAULT_HEARTBEAT = 30.0
"""Seconds after which a worker that doesn't respond is lost."""

MessageHandler = Callable[[int, object], Any]
"""Receives (rank, message) on the driver while the workers run; what it returns is the answer for a
worker that asked."""


@dataclass(frozen=True)
class Task:
    """What every worker does: `load` alone, then `work` as a member of the ring.

    The two are apart so that all data is there before anybody communicates: a failure
    upstream then can't leave peers hanging in a collective.
    """

    load: Callable[[int, int, Iterator[pa.RecordBatch]], Any]
    """(rank, size, rows that the engine feeds to this worker) -> state."""
    work: Callable[[World, Any], Any]
    """(world, state) -> result, which must pickle."""
    encrypt: bool = False
    """Whether connections between workers, and with the driver, are encrypted."""
    stoppable: bool = False
    """Whether `work` looks at `world.link.stop_requested()`, so that Ctrl-C can end it in order."""
    device: str = "auto"
    """Where a worker computes: "auto", "cpu", "cuda" or "cuda:N"."""
    cpus: int | None = None
    """Cores of a worker; None: what the engine gives it."""


class Engine(Protocol):
    """Runs a task on N workers and returns their results in rank order."""

    name: str

    def run(
        self,
        task: Task,
        num_workers: int,
        *,
        rows: Any = None,
        timeout: float,
        heartbeat: float = DEFAULT_HEARTBEAT,
        join_timeout: float = LONGEST_WAIT,
        on_message: MessageHandler,
    ) -> list[Any]:
        """Run `task`.

        Args:
            task: What every worker does.
            num_workers: How many there are.
            rows: A data set of the engine's own kind, one part a worker.
            timeout: Seconds that a worker waits for others in a collective.
            heartbeat: Seconds after which a worker that is stopped, locked up or out of reach is
                lost.
            join_timeout: Seconds that workers wait for each other to have loaded their rows.
            on_message: Receives what workers tell.
        """
        ...
