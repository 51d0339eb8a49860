"""What a worker asks Ray for, and how many such workers its nodes have room for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_WATCH_SECONDS = 5.0


@dataclass(frozen=True)
class WorkerResources:
    """What each worker asks Ray for."""

    cpus: int = 1
    gpus: int = 0
    others: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ray: Any, device: str, cpus: int | None, others: Mapping[str, float], workers: int
    ) -> WorkerResources:
        """So many cores on such a device; on "auto" a GPU, where each of the workers gets one."""
        gpus = ray.cluster_resources().get("GPU", 0)
        has_gpu = device != "cpu" and gpus >= (workers if device == "auto" else 1)
        return cls(cpus or 1, int(has_gpu), dict(others))

    @property
    def bundle(self) -> dict[str, float]:
        """In Ray's words.

        >>> WorkerResources(2, 1).bundle
        {'CPU': 2.0, 'GPU': 1.0}
        """
        named = {"CPU": float(self.cpus), "GPU": float(self.gpus), **self.others}
        return {name: amount for name, amount in named.items() if amount}

    def fits(self, free: Mapping[str, float]) -> int:
        """How many such workers a node has room for.

        >>> WorkerResources(2).fits({"CPU": 5.0}), WorkerResources(1, 1).fits({"CPU": 5.0})
        (2, 0)
        >>> WorkerResources(1, others={"disk": 0.1}).fits({"CPU": 16.0, "disk": 1.0})
        10
        """
        places = (free.get(name, 0) / amount for name, amount in self.bundle.items())
        return int(min(places) + 1e-9)  # 0.3 / 0.1 is a bit less than 3

    def __str__(self) -> str:
        return ", ".join(f"{amount:g} {name}" for name, amount in self.bundle.items())


def slots(ray: Any, resources: WorkerResources, spare_cpus: int = 0) -> int:
    """How many such workers fit on the nodes of the cluster, were they free.

    So many CPUs are left on one of the nodes, where that costs the fewest workers.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total, costs = sum(resources.fits(node) for node in nodes), []
    for node in nodes:
        left = node.get("CPU", 0) - spare_cpus
        if left >= 0:
            costs.append(resources.fits(node) - resources.fits({**node, "CPU": left}))
    return total - min(costs, default=total)


class PlaceWatch:
    """Looks, now and then, whether a run of fewer workers could have as many as it wanted.

    It tells once, when that many fit on the nodes and those that it lacks would be free.
    """

    def __init__(
        self,
        ray: Any,
        resources: WorkerResources,
        size: int,
        wanted: int | None,
        tell: Callable[[], None],
        spare_cpus: int = 0,
    ) -> None:
        self._ray = ray
        self._size = size
        self._resources = resources
        self._wanted = wanted
        self._tell = tell
        self._spare_cpus = spare_cpus
        self._next = 0.0

    def look(self) -> None:
        """If it is time."""
        if self._wanted is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _WATCH_SECONDS
        is_free = self._resources.fits(self._ray.available_resources()) >= self._wanted - self._size
        if is_free and slots(self._ray, self._resources, self._spare_cpus) >= self._wanted:
            self._wanted = None
            self._tell()
