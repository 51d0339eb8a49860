"""Workers as Ray's actors, in one placement group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from farandole import _spark
from farandole.arguments import check_seconds
from farandole.engines.base import DEFAULT_HEARTBEAT, MessageHandler, Task
from farandole.engines.collector import Collector, Reports
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.interrupt import Interrupts
from farandole.engines.ray_actor import ActorSpec, WorkerRows
from farandole.engines.ray_cluster import can_grow, connect
from farandole.engines.ray_gang import ActorGang, check_free_core
from farandole.engines.ray_resources import PlaceWatch, WorkerResources, slots
from farandole.engines.serialization import PickledTask
from farandole.engines.spark_rows import RowsJob, RowTargets
from farandole.errors import InputError
from farandole.world import LONGEST_WAIT

START_SECONDS = 120.0
"""How long to wait for places, and then for actors to start."""
REPLACEMENT_SECONDS = 10.0
"""How long a node that was lost may take to be replaced."""
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class RayEngine:
    """Runs each worker as an actor of Ray's, all of them in one placement group.

    Ray is what this process is connected to; else what is at `address`; else one is started on
    this machine, for as long as this process lives.

    Args:
        address: Of a running Ray, as `ray.init` takes it; not `ray://`. "local" starts one.
        resources: What each worker needs besides cores and GPUs, by Ray's names.
        strategy: How Ray spreads workers over nodes: "PACK", "SPREAD", "STRICT_PACK" or
            "STRICT_SPREAD".
        start_timeout: Seconds to wait for places, and then for actors to start.
        wanted_workers: Ask a run of fewer to end with its epoch, once the nodes have room for so
            many.

    >>> RayEngine(resources={"large_disk": 1}).name
    'ray'
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        *,
        resources: Mapping[str, float] | None = None,
        strategy: str = "PACK",
        start_timeout: float = START_SECONDS,
        wanted_workers: int | None = None,
    ) -> None:
        check_seconds("start_timeout", start_timeout)
        if strategy not in _STRATEGIES:
            known = ", ".join(f'"{each}"' for each in _STRATEGIES)
            raise InputError(f"strategy must be one of {known}. Received: strategy={strategy!r}")
        _check_resources(resources)
        self._address = address
        self._resources = dict(resources or {})
        self._strategy = strategy
        self._start_timeout = start_timeout
        self._wanted_workers = wanted_workers
        self._with_gpus: set[int] = set()
        """How many workers there were in runs that had a GPU for each."""

    def wanting(self, workers: int) -> RayEngine:
        """The same, which ends an epoch early on when so many workers could run."""
        return RayEngine(
            self._address,
            resources=self._resources,
            strategy=self._strategy,
            start_timeout=self._start_timeout,
            wanted_workers=workers,
        )

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
        """Start the actors, wait for all results, leave nothing behind.

        `rows` says what each worker reads, and which of it belongs to others; or it is a Spark
        DataFrame with one partition a worker, which Spark's tasks send there.
        """
        frame, rows = (rows, None) if _spark.is_dataframe(rows) else (None, rows)
        pickled = PickledTask(task)
        ray = connect(self._address)  # before Ctrl-C is counted: it may take seconds
        resources = self._resources_for(ray, task, num_workers)
        reports = Reports(on_message)
        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            limits = self._strategy, self._start_timeout
            gang = stack.enter_context(ActorGang(ray, num_workers, resources, *limits, interrupts))
            host = gang.driver_host
            endpoint = stack.enter_context(
                DriverEndpoint(host, reports, encrypt=task.encrypt, task=pickled.pickled)
            )
            monitor = stack.enter_context(HeartbeatMonitor(host, heartbeat))
            is_computed = rows is not None and rows.router is not None
            if is_computed:
                check_free_core(ray, num_workers, resources, interrupts, self._start_timeout)
            row_hosts = _row_hosts(gang, frame, rows)
            spec = ActorSpec(
                rank=0,
                addresses=gang.addresses,
                store_port=gang.open_store_port(),
                row_ports=gang.open_row_ports(row_hosts) if row_hosts else (),
                driver=endpoint.address,
                heartbeat=monitor.address,
                timeout=timeout,
                join_timeout=join_timeout,
                threads=resources.cpus,
            )
            workers = gang.run(spec, rows, monitor)
            collector = Collector(workers, reports, endpoint, monitor, interrupts, timeout)
            watch = PlaceWatch(
                ray, resources, num_workers, self._wanted_workers, endpoint.request_restart,
                spare_cpus=int(is_computed),
            )  # fmt: skip
            checks = [watch.look]
            if frame is None:
                return collector.results(stoppable=task.stoppable, each_time=checks)
            targets = tuple(zip(row_hosts, spec.row_ports, strict=True))
            job = RowsJob(frame, RowTargets(targets, endpoint.address.credentials))
            checks.append(stack.enter_context(job).check)
            results = collector.results(stoppable=task.stoppable, each_time=checks)
            job.finish()
            return results

    def _resources_for(self, ray: Any, task: Task, num_workers: int) -> WorkerResources:
        """What each worker of a run gets."""
        others = self._resources
        resources = WorkerResources.of(ray, task.device, task.cpus, others, num_workers)
        note = self._with_gpus.add if resources.gpus else self._with_gpus.discard
        note(num_workers)
        return resources

    def connect(self) -> None:
        """Connect to Ray, or start it; nothing if that was done before."""
        connect(self._address)

    def has_gpus(self, count: int) -> bool:
        """Whether the nodes have so many."""
        return bool(connect(self._address).cluster_resources().get("GPU", 0) >= count)

    def is_on_this_machine(self) -> bool:
        """Whether all nodes are, so that workers see its files."""
        ray = connect(self._address)
        own = ray.util.get_node_ip_address()
        return all(node["NodeManagerAddress"] == own for node in ray.nodes() if node["Alive"])

    def settled_slots(
        self,
        wanted: int,
        patience: float = REPLACEMENT_SECONDS,
        *,
        device: str = "auto",
        cpus: int | None = None,
        spare_cpus: int = 0,
    ) -> int:
        """How many workers of so many cores the nodes have room for, were they free.

        So many CPUs are left for what computes a data set meanwhile. If those workers are fewer
        than `wanted`, nodes that may be on their way are waited for with `patience`. Where so many
        have run with GPUs, places are those that still have one.
        """
        least = 1 if wanted in self._with_gpus else wanted
        ray = connect(self._address)
        deadline = time.monotonic() + patience
        while True:
            resources = WorkerResources.of(ray, device, cpus, self._resources, least)
            found = slots(ray, resources, spare_cpus)
            if found >= wanted or time.monotonic() > deadline or not can_grow(ray):
                return found
            time.sleep(0.5)


def _row_hosts(gang: ActorGang, frame: Any, rows: WorkerRows | None) -> Sequence[str]:
    """Where each worker listens for rows that others have; nowhere, if none come."""
    if frame is not None:
        session = frame.sparkSession
        is_here = _spark.is_local(session) and not _spark.is_connect(session)
        return gang.hosts_for_rows(local=is_here)
    is_exchanged = rows is not None and rows.router is not None and len(gang.addresses) > 1
    return gang.addresses if is_exchanged else ()


def _check_resources(resources: object) -> None:
    if resources is None:
        return
    if not isinstance(resources, Mapping) or not all(
        isinstance(name, str)
        and isinstance(amount, int | float)
        and not isinstance(amount, bool)
        and amount > 0
        for name, amount in resources.items()
    ):
        raise InputError(
            'resources must map Ray\'s names to amounts above 0, such as {"large_disk": 1}. '
            f"Received: resources={resources!r}"
        )
    taken = sorted({"CPU", "GPU", "memory", "object_store_memory"} & set(resources))
    if taken:
        raise InputError(
            f"resources can't name {taken[0]!r}: cores are cpus_per_worker= of the call, a GPU "
            "comes with device=, and memory isn't reserved."
        )
