"""What every engine has to do. A new engine runs `CHECKS` in its test, and nothing else knows it.

Each check takes an engine and a number of workers; it raises AssertionError when the engine
breaks the contract. Every one starts the workers anew, so there are few, and each asks much.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist

from farandole.engines import Engine, Output, Task
from farandole.errors import InputError, PeerLost, WorkerFailed, WorkerLost, WorkerMissing
from farandole.world import World, current_world

PATIENCE = 45.0
"""Seconds for a failure to be seen, on a busy machine too; a peer left alone takes 60."""
_LONG = 60.0


@dataclass
class Heard:
    """A message handler that remembers."""

    messages: list[tuple[int, object]] = field(default_factory=list)

    def __call__(self, rank: int, message: object) -> None:
        """Take a message down."""
        self.messages.append((rank, message))

    def printed(self, rank: int, stream: str) -> list[str]:
        """The lines that a rank printed."""
        found = [m for r, m in self.messages if r == rank and isinstance(m, Output)]
        return [message.text for message in found if message.stream == stream]


def _remember(rank: int, size: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, int]:
    return rank, size, sum(batch.num_rows for batch in batches)


def _report(factor: int, world: World, state: tuple[int, int, int]) -> dict[str, Any]:
    total = torch.tensor([float(world.rank + 1)])
    if world.size > 1:
        dist.all_reduce(total)
        print(f"out of {world.rank}")
        print("err without an end", end="", file=sys.stderr)
    world.link.tell(("hello", world.rank))
    return {
        "loaded": state,
        "world": (world.rank, world.size, world.local_rank, world.local_size),
        "current": current_world() is world,
        "total": total.item() * factor,
        "phases": sorted(world.seconds),
        "stop": world.link.stop_requested(),
    }


def check_results(engine: Engine, workers: int) -> None:
    """Results in rank order, from a ring that works; messages and output reach the driver."""
    heard = Heard()
    task = Task(load=_remember, work=partial(_report, 10))
    results = engine.run(task, workers, timeout=60, on_message=heard)
    assert [result["loaded"] for result in results] == [(r, workers, 0) for r in range(workers)]
    assert [result["world"][:2] for result in results] == [(r, workers) for r in range(workers)]
    assert all(result["world"][2] < result["world"][3] <= workers for result in results)
    assert all(result["current"] for result in results)
    assert {result["total"] for result in results} == {10.0 * workers * (workers + 1) / 2}
    assert all(result["phases"] == ["read", "ring-up"] for result in results)
    assert not any(result["stop"] for result in results)
    for rank in range(workers):
        assert (rank, ("hello", rank)) in heard.messages
        if workers > 1:
            assert heard.printed(rank, "stdout") == [f"out of {rank}"]
            assert "err without an end" in heard.printed(rank, "stderr")


def _raise_on(failing: int, world: World, state: object) -> None:
    if world.rank == failing:
        raise LookupError("of the user's own")
    if world.rank == 0:
        time.sleep(_LONG)
    dist.barrier()


def check_failure(engine: Engine, workers: int) -> None:
    """A failing rank is named with its traceback; rank 0, asleep, and peers in a collective end."""
    task = Task(load=_remember, work=partial(_raise_on, workers - 1))
    error, seconds = _error_of(engine, task, workers, timeout=_LONG)
    assert seconds < PATIENCE, f"the failure took {seconds:.0f} s"
    if isinstance(error, WorkerFailed):
        assert error.rank == workers - 1
        assert error.summary == "LookupError: of the user's own"
        assert "in _raise_on" in error.traceback
        error = error.__cause__
    assert isinstance(error, LookupError), repr(error)


def _late(sleepers: set[int], rank: int, size: int, batches: Iterator[pa.RecordBatch]) -> None:
    if rank in sleepers:
        time.sleep(_LONG)


def _nothing(world: World, state: object) -> None:
    """A worker that has come."""


def check_missing(engine: Engine, workers: int) -> None:
    """Peers that never arrive, rank 0 too, are named after `join_timeout`, not after `timeout`."""
    sleepers = {0, *range(2, workers)}
    if workers > 1:
        task = Task(load=partial(_late, sleepers), work=_nothing)
        error, seconds = _error_of(engine, task, workers, timeout=0.5, join_timeout=3)
        assert isinstance(error, WorkerMissing), repr(error)
        assert error.ranks == tuple(sorted(sleepers))
        assert 3 <= seconds < PATIENCE, f"the wait took {seconds:.0f} s"


def _segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _leave() -> None:
    os._exit(7)


def _be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _be_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hold_interpreter_lock() -> None:
    ctypes.PyDLL(None).sleep(int(_LONG))


_DEATHS: dict[str, Callable[[], None]] = {
    r"[Ss]egmentation fault(.|\n)* in _segfault": _segfault,
    r"exit code 7|os\._exit": _leave,
    r"killed": _be_killed,
}
_LOCKS: dict[str, Callable[[], None]] = {
    r"stopped \(SIGSTOP\)": _be_stopped,
    r"interpreter has been locked(.|\n)* in _hold_interpreter_lock": _hold_interpreter_lock,
}
"""What the loss of a worker says, and what happens to it."""


def _suffer(fate: Callable[[], None], sufferer: int, world: World, state: object) -> None:
    dist.barrier()  # all are there, and peers have nothing to do but to wait
    if world.rank == sufferer:
        fate()
    dist.barrier()


def _check_loss(
    engine: Engine, workers: int, fates: dict[str, Callable[[], None]], heartbeat: float
) -> None:
    if workers == 1:  # who runs inside of the caller takes it along
        return
    for words, fate in fates.items():
        task = Task(load=_remember, work=partial(_suffer, fate, workers - 1))
        error, seconds = _error_of(engine, task, workers, timeout=_LONG, heartbeat=heartbeat)
        assert isinstance(error, WorkerLost), repr(error)
        assert error.rank == workers - 1
        assert re.search(words, error.summary), error.summary
        assert error.traceback == ""
        assert seconds < PATIENCE, f"the loss took {seconds:.0f} s"


def check_death(engine: Engine, workers: int) -> None:
    """A worker whose process dies is named with what killed it, and not the peers that wait."""
    _check_loss(engine, workers, _DEATHS, heartbeat=_LONG)


def check_stuck(engine: Engine, workers: int) -> None:
    """A worker that is stopped, or whose interpreter is locked, is named after `heartbeat`."""
    _check_loss(engine, workers, _LOCKS, heartbeat=4.0)


def _stay_away(truant: int, world: World, state: object) -> None:
    if world.rank == truant:
        time.sleep(_LONG)
    dist.barrier()


def check_hang(engine: Engine, workers: int) -> None:
    """A worker that lives, but stays away from a collective past `timeout`, is named."""
    if workers > 1:
        task = Task(load=_remember, work=partial(_stay_away, workers - 1))
        error, seconds = _error_of(engine, task, workers, timeout=2)
        assert isinstance(error, PeerLost), repr(error)
        assert error.ranks == (workers - 1,)
        assert seconds < PATIENCE, f"the wait took {seconds:.0f} s"


def _tell_and_sleep(world: World, state: object) -> None:
    world.link.tell("hello")
    for _ in range(int(_LONG)):
        time.sleep(1)


def check_handler(engine: Engine, workers: int) -> None:
    """An error of the caller's own handler ends the run, and is what the caller sees."""

    def handler(rank: int, message: object) -> None:
        raise LookupError("of the handler")

    task = Task(load=_remember, work=_tell_and_sleep)
    error, seconds = _error_of(engine, task, workers, timeout=60, on_message=handler)
    assert isinstance(error, LookupError), repr(error)
    assert seconds < PATIENCE


def check_unpicklable(engine: Engine, workers: int) -> None:
    """What can't be sent to the workers is said before they start."""
    if workers > 1:
        task = Task(load=_remember, work=partial(_report, threading.Lock()))  # type: ignore[arg-type]
        error, _ = _error_of(engine, task, workers, timeout=60)
        assert isinstance(error, InputError), repr(error)
        assert "lock" in str(error)


def check_identity(engine: Engine, workers: int) -> None:
    """An engine has a name."""
    assert engine.name.isidentifier()


def _error_of(
    engine: Engine,
    task: Task,
    workers: int,
    *,
    on_message: Callable[[int, object], None] | None = None,
    **limits: float,
) -> tuple[BaseException | None, float]:
    start = time.monotonic()
    try:
        engine.run(task, workers, on_message=on_message or Heard(), **{"timeout": 60.0, **limits})
    except Exception as error:
        return error, time.monotonic() - start
    raise AssertionError("the run should have failed")


CHECKS = (
    check_identity,
    check_unpicklable,
    check_results,
    check_failure,
    check_death,
    check_stuck,
    check_hang,
    check_missing,
    check_handler,
)
