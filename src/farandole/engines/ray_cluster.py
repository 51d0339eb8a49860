"""Which Ray there is: one that runs already, one at an address, or one that is started here."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from farandole.errors import InputError, LaunchError, MissingPackage

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
"""What workers print comes over their links, each line with its rank."""
_STARTS = 2
_WATCH_SECONDS = 5.0
_started: str | None = None
"""The address of the Ray that this process started last."""


def import_ray() -> Any:
    """The package, or an error that says what to install."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackage("ray", "ray") from error
    return ray


def connect(address: str | None) -> Any:
    """Ray, connected: to what this process is connected to already, or to `address`.

    Without either, one is started on this machine. It ends with this process.
    """
    ray = import_ray()
    if ray.is_initialized():
        _check_connection(ray, address)
        return ray
    wanted = address or os.environ.get("RAY_ADDRESS")
    if wanted is not None:
        _refuse_client(wanted)
        try:
            ray.init(address=wanted, **_QUIET)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise LaunchError(
                f"Ray at {wanted!r} can't be reached: {_first_line(error)}. Is it running "
                "(`ray status`), and does this process have its token (RAY_AUTH_TOKEN)?"
            ) from error
        return ray
    start_ray(ray)
    cpus = ray.cluster_resources().get("CPU", 0)
    print(
        f"farandole: started Ray on this machine, with {cpus:g} CPUs. It ends with this process, "
        "or by ray.shutdown().",
        file=sys.stderr,
        flush=True,
    )
    return ray


def start_ray(ray: Any, **options: Any) -> None:
    """A Ray of this machine. Its ports are open to the network, so it asks for a token.

    Ray does so by itself, unless RAY_AUTH_MODE says otherwise. With a token of this process it
    writes none to the user's home.
    """
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    global _started
    for attempt in range(_STARTS):
        try:
            ray.init(address="local", include_dashboard=False, **_QUIET, **options)
            _started = ray.get_runtime_context().gcs_address
            return
        except Exception as error:  # Ray gives its own processes 30 s, on a busy machine too
            ray.shutdown()
            if attempt + 1 == _STARTS:
                said = _first_line(error)
                raise LaunchError(f"Ray could not be started on this machine: {said}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _check_connection(ray: Any, address: str | None) -> None:
    _refuse_client("ray://…" if ray.util.client.ray.is_connected() else "")
    own = ray.get_runtime_context().gcs_address
    if address is not None and address not in ("auto", "local", own):
        raise InputError(
            f"This process is connected to Ray at {own}, so it can't use address={address!r}. Call "
            "ray.shutdown() first, or leave the address out."
        )


def _refuse_client(address: str) -> None:
    if address.startswith("ray://"):
        raise InputError(
            f"address={address!r} is Ray Client's, behind which workers can't reach this process. "
            "Run it on a machine of the cluster (`ray job submit`), and leave the address out."
        )


@dataclass(frozen=True)
class WorkerResources:
    """What each worker asks Ray for."""

    cpus: int = 1
    gpus: int = 0
    others: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ray: Any, device: str, cpus: int | None, others: Mapping[str, float]
    ) -> WorkerResources:
        """So many cores on such a device; a GPU where the cluster has some, unless it is "cpu"."""
        gpu = device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
        return cls(cpus or 1, int(gpu), dict(others))

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
        """
        return int(min(free.get(name, 0) // amount for name, amount in self.bundle.items()))

    def __str__(self) -> str:
        return ", ".join(f"{amount:g} {name}" for name, amount in self.bundle.items())


def can_grow(ray: Any) -> bool:
    """Whether nodes may still come: not to a Ray that was started here."""
    return bool(ray.get_runtime_context().gcs_address != _started)


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
