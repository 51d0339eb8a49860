"""The actors of one run, in one placement group: all of them, or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from farandole.engines.addresses import network_stack
from farandole.engines.collector import Ending
from farandole.engines.driver_link import print_notice
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.interrupt import Interrupts
from farandole.engines.late_rows import NOTICE_SECONDS
from farandole.engines.ray_actor import (
    ActorSpec,
    Place,
    WorkerActor,
    WorkerRows,
    reachable_addresses,
)
from farandole.engines.ray_cluster import can_grow
from farandole.engines.ray_errors import describe_loss, describe_start
from farandole.engines.ray_resources import WorkerResources, slots
from farandole.engines.rendezvous import LOOPBACK
from farandole.errors import LaunchError, NotEnoughSlots

_POLL_SECONDS = 0.2
_END_SECONDS = 5.0
_SEEN_SECONDS = 0.5
_FREE_SECONDS = 10.0
"""How long Ray may take to say that other work has ended, and its cores are free."""


class ActorGang:
    """Reserves places, starts an actor in each, and ends them all. Use as a context manager."""

    def __init__(
        self,
        ray: Any,
        size: int,
        resources: WorkerResources,
        strategy: str,
        seconds: float,
        interrupts: Interrupts,
    ) -> None:
        self._ray = ray
        self._size = size
        self._resources = resources
        self._strategy = strategy
        self._seconds = seconds
        self._interrupts = interrupts
        self._actors: list[Any] = []
        self._group: Any = None
        self.places: Sequence[Place] = ()

    def __enter__(self) -> ActorGang:
        try:
            self._reserve()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            with suppress(Exception):  # it has died, or Ray itself has gone
                self._ray.kill(actor, no_restart=True)
        if self._group is not None:
            with suppress(Exception):
                _remove(self._ray, self._group)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all ranks, as peers reach them."""
        return reachable_addresses(self.places)

    @property
    def driver_host(self) -> str:
        """Where the driver had better listen: on loopback, if all workers are on its machine."""
        here = {network_stack(), *(place.stack for place in self.places)}
        return LOOPBACK if len(here) == 1 else str(self._ray.util.get_node_ip_address())

    def open_store_port(self) -> int:
        """Let rank 0 listen; gives the port of its store."""
        call = self._actors[0].open_store_port.remote(self.addresses[0])
        return int(self._answers([call])[0])

    def hosts_for_rows(self, *, local: bool) -> tuple[str, ...]:
        """Where each worker listens for Spark's tasks; `local`: they run on this machine."""
        here = local and self.driver_host == LOOPBACK
        return tuple(LOOPBACK if here else place.address for place in self.places)

    def open_row_ports(self, hosts: Sequence[str]) -> tuple[int, ...]:
        """Let every worker listen for its rows."""
        pairs = zip(self._actors, hosts, strict=True)
        return tuple(self._answers([actor.open_row_port.remote(host) for actor, host in pairs]))

    def run(
        self, spec: ActorSpec, rows: WorkerRows | None, monitor: HeartbeatMonitor
    ) -> list[RunningActor]:
        """Let every worker begin, each with its own rank in place of the spec's."""
        started = []
        for rank, (actor, place) in enumerate(zip(self._actors, self.places, strict=True)):
            call = actor.run.remote(replace(spec, rank=rank), place.gpus, rows)
            started.append(RunningActor(self._ray, rank, call, place, monitor))
        return started

    def _reserve(self) -> None:
        """Wait for a place for each worker; raise if there aren't so many in time."""
        bundles = [self._resources.bundle] * self._size
        self._group = self._ray.util.placement_group(bundles, strategy=self._strategy)
        notice = f"still waiting for {self._size} places on Ray, each with {self._resources}"
        if not _is_placed(self._group, self._seconds, self._interrupts, notice, self._is_hopeless):
            raise self._too_few(slots(self._ray, self._resources))

    def _is_hopeless(self) -> bool:
        return slots(self._ray, self._resources) < self._size and not can_grow(self._ray)

    def _too_few(self, room: int) -> NotEnoughSlots:
        ray = self._ray
        total, free = ray.cluster_resources(), ray.available_resources()
        names = list(self._resources.bundle)
        has = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in names)
        cpu = 'device="cpu", ' if self._resources.gpus else ""
        where = "" if self._strategy == "PACK" else f" (strategy {self._strategy!r})"
        return NotEnoughSlots(
            self._size,
            room,
            f"{self._size} workers were asked for, each with {self._resources}, but Ray has no "
            f"room for all of them{where}: the cluster has places for {room}, and free are {has}. "
            f"Use fewer workers, {cpu}a smaller cpus_per_worker or more nodes; or wait longer for "
            "a busy cluster: engine=RayEngine(start_timeout=…).",
        )

    def _start(self) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(max_restarts=0, max_task_retries=0)(WorkerActor)
        for rank in range(self._size):
            place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
            options = {
                "num_cpus": self._resources.cpus,
                "num_gpus": self._resources.gpus,
                "resources": dict(self._resources.others),
                "scheduling_strategy": place,
            }
            self._actors.append(actor.options(**options).remote())
        own = str(self._ray.util.get_node_ip_address())
        self.places = self._answers([each.place.remote(own) for each in self._actors])

    def _answers(self, refs: list[Any]) -> list[Any]:
        """What all calls give; raises what the first to fail says, and not the first rank."""
        waiting, deadline = list(refs), time.monotonic() + self._seconds
        while waiting:
            done, waiting = self._ray.wait(waiting, timeout=_POLL_SECONDS)
            self._check_interrupts()
            for ref in done:
                try:
                    self._ray.get(ref)
                except Exception as error:
                    why = describe_start(error)
                    raise LaunchError(f"A worker could not start on Ray: {why}.") from error
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{len(waiting)} of {self._size} actors had not started {self._seconds:g} s "
                    "after Ray had found places for them. Look at Ray's logs, or wait longer: "
                    "engine=RayEngine(start_timeout=…)."
                )
        return list(self._ray.get(refs))

    def _check_interrupts(self) -> None:
        if self._interrupts.count:
            raise self._interrupts.error()


class RunningActor:
    """A worker's call, as the collector of results sees it."""

    def __init__(
        self, ray: Any, rank: int, call: Any, place: Place, monitor: HeartbeatMonitor
    ) -> None:
        self._ray = ray
        self._rank = rank
        self._call = call
        self._monitor = monitor
        self.place = str(place)

    def ending(self) -> Ending | None:
        """What Ray says of it; None while it runs."""
        done, _ = self._ray.wait([self._call], timeout=0)
        if not done:
            return None
        try:
            failure = self._ray.get(self._call)
        except Exception as error:
            return Ending(False, describe_loss(error, self._seen()))
        return Ending(failure is None, "its call has ended without a result", failure)

    def _seen(self) -> str:
        """What the process beside the worker saw of its end: more than Ray knows."""
        lost = self._monitor.wait_for_loss(_SEEN_SECONDS)
        return lost.summary if lost is not None and lost.rank == self._rank else ""


def check_free_core(
    ray: Any, size: int, resources: WorkerResources, interrupts: Interrupts, seconds: float
) -> None:
    """Raise if the workers leave Ray no core to compute a data set with: it would wait for ever.

    A place for one is asked for: a node has to have it whole, and one that may yet come is wanted.
    """
    group = ray.util.placement_group([{"CPU": 1.0}])
    patience = seconds if can_grow(ray) else min(seconds, _FREE_SECONDS)
    notice = "still waiting for a CPU besides the workers', with which Ray computes the data set"
    try:
        if _is_placed(group, patience, interrupts, notice):
            return
    finally:
        with suppress(Exception):
            _remove(ray, group)
    total = ray.cluster_resources().get("CPU", 0)
    raise NotEnoughSlots(
        size,
        slots(ray, resources, spare_cpus=1),
        f"{size} workers with {resources} each leave none of the cluster's {total:g} CPUs "
        "free, and Ray computes a ray.data.Dataset with at least one. Use fewer workers, "
        f"more nodes, or on one machine ray.init(num_cpus={size * resources.cpus + 1}); workers "
        "read Parquet files themselves.",
    )


def _is_placed(
    group: Any,
    seconds: float,
    interrupts: Interrupts,
    notice: str,
    is_hopeless: Callable[[], bool] = lambda: False,
) -> bool:
    """Whether a group gets its places in time; a long wait is told."""
    begun, is_told = time.monotonic(), False
    while not group.wait(_POLL_SECONDS):
        if interrupts.count:
            raise interrupts.error()
        waited = time.monotonic() - begun
        if waited > seconds or is_hopeless():
            return False
        if waited > NOTICE_SECONDS and not is_told:
            is_told = True
            print_notice(f"{notice} (`ray status` shows who has them). It may take {seconds:g} s.")
    return True


def _remove(ray: Any, group: Any) -> None:
    """Until the places are free again: whoever runs next may need them."""
    ray.util.remove_placement_group(group)
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        if ray.util.placement_group_table(group).get("state") == "REMOVED":
            return
        time.sleep(0.02)
