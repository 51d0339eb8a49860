"""What happens inside a worker, on every engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pyarrow as pa

from farandole.devices import check_own_device, choose_device, idle_gpus
from farandole.engines.encryption import Credentials
from farandole.engines.failure import Failure
from farandole.engines.output import Output, output_to
from farandole.engines.pickled import Pickled
from farandole.engines.preemption import PreemptibleLink, Preemption
from farandole.engines.rendezvous import Rendezvous, process_group, wait_for_all
from farandole.engines.serialization import LinkedTask, PickledTask, dump_result
from farandole.engines.store import AuthenticatedStore
from farandole.world import Link, World, entered


@dataclass(frozen=True)
class Joined:
    """Sent by a worker when the ring is up: from here on it can be asked for an orderly end."""


class WorkerFailure(Exception):
    """Carries a `Failure` out of the worker, with nothing attached that holds the process group."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Which worker this is, and how it reaches the others and the driver."""

    rank: int
    size: int
    rendezvous: Rendezvous
    link: Link
    timeout: float
    """Seconds in a collective."""
    join_timeout: float
    """Seconds until all have loaded their rows."""
    credentials: Credentials
    """Of this run."""
    gpus: Sequence[str] = ()
    """The addresses of the GPUs that this worker was granted."""
    gpu_name: str | None = None
    """Of the GPU on its host, where torch doesn't show a worker those of others."""
    cluster: str = "Spark"
    """Who granted them."""


def run_task(
    pickled: PickledTask | LinkedTask, batches: Iterator[pa.RecordBatch], context: WorkerContext
) -> Pickled:
    """Load, join the others, work; gives the pickled result. Any error is a `WorkerFailure`."""
    try:
        with output_to(context.link):
            return _load_and_work(pickled, batches, context)
    except BaseException as error:  # also sys.exit(): the driver has to hear of it
        failure = Failure.of(context.rank, error)
    raise WorkerFailure(failure)


def _load_and_work(
    pickled: PickledTask | LinkedTask, batches: Iterator[pa.RecordBatch], context: WorkerContext
) -> Pickled:
    task = pickled.load()
    rank, rendezvous = context.rank, context.rendezvous
    on_stranger = partial(_tell_notice, context.link)
    open_store = partial(rendezvous.open_store, context.credentials, on_stranger)
    # A GPU that isn't there is told before rows are read.
    choose_device(task.device, context.gpus, cluster=context.cluster)
    start = time.perf_counter()
    # Rank 0 serves the store from the start: peers that are ready sooner can then name the missing.
    store = open_store() if rank == 0 else None
    state = task.load(rank, context.size, batches)
    loaded = time.perf_counter()
    addresses = rendezvous.addresses()
    here = [other for other, address in enumerate(addresses) if address == addresses[rank]]
    store = store or open_store()
    device = _device(task.device, context, here, store)
    nonces = wait_for_all(store, rank, context.size, context.join_timeout)
    _check_devices(store, device, here)
    store.set_timeout(timedelta(seconds=context.timeout))
    with (
        Preemption(task.stoppable) as preemption,
        process_group(store, rank, addresses, device, context.timeout, context.credentials, nonces),
    ):
        context.link.tell(Joined())
        world = World(
            rank=rank,
            size=context.size,
            local_rank=here.index(rank),
            local_size=len(here),
            addresses=tuple(addresses),
            device=device,
            timeout=context.timeout,
            secret=context.credentials.secret,
            link=PreemptibleLink(context.link, preemption),
            seconds={"read": loaded - start, "ring-up": time.perf_counter() - loaded},
        )
        with entered(world):
            payload = dump_result(rank, task.work(world, state))
        # They may hold the group (a method of an object that has a DDP module): before it ends.
        del task, state
    return payload


def _device(
    asked: str, context: WorkerContext, here: Sequence[int], store: AuthenticatedStore
) -> str:
    """The device of this worker, told to its neighbours before they know that it has come."""
    place = here.index(context.rank), len(here)
    device = choose_device(asked, context.gpus, *place, cluster=context.cluster)
    told = device if device == "cpu" or context.gpu_name is None else f"GPU {context.gpu_name}"
    store.set(f"device/{context.rank}", told)
    notice = idle_gpus(asked, device) if here[0] == context.rank else None
    if notice is not None:
        _tell_notice(context.link, notice)
    return device


def _check_devices(store: AuthenticatedStore, device: str, here: Sequence[int]) -> None:
    """Raise if a neighbour has the same GPU."""
    if device != "cpu":
        found = store.multi_get([f"device/{rank}" for rank in here])
        check_own_device({rank: each.decode() for rank, each in zip(here, found, strict=True)})


def _tell_notice(link: Link, text: str) -> None:
    link.tell(Output("stderr", f"farandole: {text}"))
