"""What happens inside a worker, on every engine."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import pyarrow as pa
from torch._C._distributed_c10d import Store

from farandole.engines.base import Task
from farandole.engines.channel import Output
from farandole.engines.failure import Failure
from farandole.engines.rendezvous import choose_device, process_group
from farandole.world import Link, World, entered


class WorkerFailure(Exception):
    """Carries a `Failure` out of the worker, with nothing attached that holds the ring."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


def perform(
    task: Task,
    rank: int,
    addresses: Sequence[str],
    batches: Iterator[pa.RecordBatch],
    open_store: Callable[[], Store],
    link: Link,
    timeout: float,
) -> Any:
    """Load, join the ring, work. Any error comes out as a `WorkerFailure`."""
    try:
        return _load_and_work(task, rank, addresses, batches, open_store, link, timeout)
    except Exception as error:
        failure = Failure.of(rank, error)
    raise WorkerFailure(failure)


def _load_and_work(
    task: Task,
    rank: int,
    addresses: Sequence[str],
    batches: Iterator[pa.RecordBatch],
    open_store: Callable[[], Store],
    link: Link,
    timeout: float,
) -> Any:
    start = time.perf_counter()
    state = task.load(rank, len(addresses), batches)
    loaded = time.perf_counter()
    here = [other for other, address in enumerate(addresses) if address == addresses[rank]]
    device = choose_device(here.index(rank), len(here))
    with process_group(open_store(), rank, addresses, device, timeout):
        world = World(
            rank=rank,
            size=len(addresses),
            local_rank=here.index(rank),
            local_size=len(here),
            addresses=tuple(addresses),
            device=device,
            link=link,
            seconds={"read": loaded - start, "ring-up": time.perf_counter() - loaded},
        )
        with entered(world):
            return task.work(world, state)


class _Lines(io.TextIOBase):
    """A text stream that hands whole lines to the driver."""

    def __init__(self, name: str, link: Link) -> None:
        self._name = name
        self._link = link
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._link.tell(Output(self._name, line))
        return len(text)

    def finish(self) -> None:
        """Send the last line, which has no end."""
        if self._rest:
            self.write("\n")


@contextmanager
def output_to(link: Link) -> Iterator[None]:
    """Send what the body prints to the driver."""
    out, err = _Lines("stdout", link), _Lines("stderr", link)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.finish()
            err.finish()
