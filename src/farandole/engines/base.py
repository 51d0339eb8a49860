"""What an engine is: a way to run one task on N workers that can talk to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from farandole.world import World

MessageHandler = Callable[[int, object], None]
"""Receives (rank, message) on the driver while the workers run."""


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
        on_message: MessageHandler,
    ) -> list[Any]:
        """Run `task`; `rows` is a data set of the engine's own kind, one part a worker."""
        ...
