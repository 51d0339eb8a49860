"""The Run API: one function on every worker of a ring."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from farandole.arguments import check_flag, check_integer, check_seconds
from farandole.devices import check_device
from farandole.engines import (
    DEFAULT_HEARTBEAT,
    Engine,
    Output,
    RayEngine,
    SparkEngine,
    Task,
    resolve,
)
from farandole.errors import InputError
from farandole.system_resources import usable_cores
from farandole.tracebacks import short_traceback
from farandole.world import World

T = TypeVar("T")

DEFAULT_TIMEOUT = 60.0


@short_traceback
def run(
    fn: Callable[..., T],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_workers: int | None = None,
    engine: str | Engine | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    heartbeat: float = DEFAULT_HEARTBEAT,
    encrypt: bool = False,
    device: str = "auto",
    cpus_per_worker: int | None = None,
) -> list[T]:
    """Run `fn(*args, **kwargs)` on every worker of a ring; the results come in rank order.

    Inside, `farandole.current_world()` gives rank and size, and torch.distributed is
    initialised (gloo; nccl as well where each worker has a GPU).

    Args:
        fn: any function or lambda, also one that a notebook or `__main__` defines.
        args: its positional arguments, the same on every worker.
        kwargs: its keyword arguments.
        num_workers: how many workers; by default as many as can run at once: Spark's slots, the
            places that Ray has, or the cores of this machine.
        engine: "local" (processes), "spark", "ray", or an engine object. By default Spark when
            a session is active, else local.
        timeout: seconds that a worker waits for its peers in each collective.
        heartbeat: seconds after which a worker that is stopped, locked up or out of reach is given
            up, with a `WorkerLost` that names it.
        encrypt: encrypt what workers send each other and the driver, with TLS.
        device: what `current_world().device` is to be: "cpu", "cuda" (a GPU for each worker) or
            "auto".
        cpus_per_worker: cores of each worker.

    >>> import farandole
    >>> farandole.run(lambda: farandole.current_world().rank ** 2, num_workers=2, engine="local")
    [0, 1]
    """
    if num_workers is not None:
        check_integer("num_workers", num_workers)
    if not callable(fn):
        raise InputError(f"fn must be a function. Received: fn={fn!r}")
    if not isinstance(args, tuple | list):
        raise InputError(f"args must be a tuple of positional arguments. Received: args={args!r}")
    if not isinstance(kwargs, Mapping | None):
        raise InputError(f"kwargs must map names to values. Received: kwargs={kwargs!r}")
    check_seconds("timeout", timeout)
    check_seconds("heartbeat", heartbeat)
    check_flag("encrypt", encrypt)
    check_device(device)
    if cpus_per_worker is not None:
        check_integer("cpus_per_worker", cpus_per_worker)
    work = partial(_call, fn, tuple(args), dict(kwargs or {}))
    task = Task(_nothing, work, encrypt=encrypt, device=device, cpus=cpus_per_worker)
    runner = resolve(engine)
    workers = num_workers or most_workers(runner, device, cpus_per_worker)
    return runner.run(task, workers, timeout=timeout, heartbeat=heartbeat, on_message=print_output)


def most_workers(engine: Engine, device: str = "auto", cpus: int | None = None) -> int:
    """How many workers an engine can run at once; on Ray, with so many cores on such a device.

    >>> from farandole.engines import InlineEngine
    >>> most_workers(InlineEngine())
    1
    """
    if engine.name == "inline":
        return 1
    if isinstance(engine, RayEngine):
        return engine.settled_slots(1, device=device, cpus=cpus)
    if isinstance(engine, SparkEngine):
        return engine.settled_slots(1)
    return usable_cores()


def print_output(rank: int, message: object) -> None:
    """Show what workers print, each line with its rank in front."""
    if isinstance(message, Output):
        stream = sys.stderr if message.stream == "stderr" else sys.stdout
        print(f"[rank {rank}] {message.text}", file=stream, flush=True)


def _nothing(rank: int, size: int, batches: Iterator[pa.RecordBatch]) -> None:
    """A run has no data of its own."""


def _call(
    fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], world: World, _: None
) -> T:
    return fn(*args, **kwargs)
