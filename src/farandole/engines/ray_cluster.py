"""Which Ray there is: one that runs already, one at an address, or one that is started here."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from farandole.engines.interrupt import Interrupts, kept_sigterm
from farandole.errors import InputError, LaunchError, MissingPackage

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
"""What workers print comes over their links, each line with its rank."""
_OF_RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED")
_WATCH_SECONDS = 5.0
_connecting = threading.Lock()
"""A process has one Ray, and several threads may be the first to want it."""
_started: str | None = None
"""The address of the Ray that this process started last."""


def import_ray(part: str = "ray") -> Any:
    """The package, with that part of it loaded, or an error that says what to install."""
    try:
        import_module(part)
    except ImportError as error:
        raise MissingPackage("ray", "ray") from error
    return import_module("ray")


def connect(address: str | None) -> Any:
    """Ray, connected: to what this process is connected to already, or to `address`.

    Without either, or at "local", one is started on this machine. It ends with this process.
    """
    ray = import_ray()
    with _connecting:
        if ray.is_initialized():
            _check_connection(ray, address)
        else:
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local")
    return ray


def _connect(ray: Any, address: str) -> None:
    if address == "local":
        start_ray(ray)
        cpus = ray.cluster_resources().get("CPU", 0)
        print(
            f"farandole: started Ray on this machine, with {cpus:g} CPUs. It ends with this "
            "process, or by ray.shutdown().",
            file=sys.stderr,
            flush=True,
        )
        return
    _refuse_client(address)
    reload_token()
    try:
        with kept_sigterm():
            ray.init(address=address, **_QUIET)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise LaunchError(
            f"Ray at {address!r} can't be reached: {_first_line(error)}. Is it running "
            "(`ray status`), and does this process have its token (RAY_AUTH_TOKEN)?"
        ) from error


def start_ray(ray: Any, **options: Any) -> None:
    """A Ray of this machine. Its ports are open to the network, so it asks for a token.

    Ray does so by itself, unless RAY_AUTH_MODE says otherwise. With a token of this process it
    writes none to the user's home. Ray gives its own processes 30 s, on a busy machine too, so
    what fails is tried once more. Ctrl-C waits for the start: amid it, they would be left behind.
    """
    global _started
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
    usage = os.environ.get("RAY_USAGE_STATS_ENABLED") or "0"
    variables = {"RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": usage}
    with ray_environment(variables, _OF_RAY), kept_sigterm(), Interrupts() as interrupts:
        error = _failure_to_start(ray, options)
        if error is not None and not interrupts.count:
            error = _failure_to_start(ray, options)
        if interrupts.count:
            ray.shutdown()
            raise interrupts.error()
    if error is not None:
        said = _first_line(error)
        raise LaunchError(f"Ray could not be started on this machine: {said}") from error
    _started = ray.get_runtime_context().gcs_address


def _failure_to_start(ray: Any, options: Mapping[str, Any]) -> Exception | None:
    try:
        ray.init(address="local", include_dashboard=False, **_QUIET, **options)
    except Exception as error:
        ray.shutdown()
        return error
    except BaseException:  # Ray's own handler of SIGTERM
        ray.shutdown()
        raise
    return None


@contextmanager
def ray_environment(variables: Mapping[str, str], kept: Sequence[str]) -> Iterator[None]:
    """Set variables for Ray's processes; at the end, all that are `kept` are as they were before.

    This process itself needs them no longer than it takes to connect: Ray reads them once.
    """
    before = {name: os.environ.get(name) for name in kept}
    os.environ.update(variables)
    reload_token()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def reload_token() -> None:
    """Let Ray read mode and token again: it keeps those that this process had first."""
    with suppress(Exception):  # other versions may not keep them
        raylet = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _check_connection(ray: Any, address: str | None) -> None:
    _refuse_client("ray://…" if ray.util.client.ray.is_connected() else "")
    own = ray.get_runtime_context().gcs_address
    if address in (None, "auto"):
        return
    is_own = own == _started if address == "local" else _same_place(ray, address, own)
    if not is_own:
        raise InputError(
            f"This process is connected to Ray at {own}, so it can't use address={address!r}. Call "
            "ray.shutdown() first, or leave the address out."
        )


def _same_place(ray: Any, address: str, other: str) -> bool:
    """Whether two addresses are one: Ray itself puts the node's own in place of localhost."""
    node = str(ray.util.get_node_ip_address())
    return _numbers(address, node) == _numbers(other, node)


def _numbers(address: str, node: str) -> tuple[str, str]:
    """Host and port, the host by its number.

    >>> _numbers("localhost:6379", "10.0.0.5")
    ('10.0.0.5', '6379')
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with suppress(OSError):  # an address of IPv6, or a name that only Ray knows
        host = socket.gethostbyname(host)
    return (node if host == "::1" or host.startswith("127.") else host), port


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


def can_grow(ray: Any) -> bool:
    """Whether nodes may still come: not to a Ray that was started here."""
    return bool(ray.get_runtime_context().gcs_address != _started)


def slots(ray: Any, resources: WorkerResources) -> int:
    """How many such workers fit on the nodes of the cluster, were they free."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sum(resources.fits(node["Resources"]) for node in alive)


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
    ) -> None:
        self._ray = ray
        self._size = size
        self._resources = resources
        self._wanted = wanted
        self._tell = tell
        self._next = 0.0

    def look(self) -> None:
        """If it is time."""
        if self._wanted is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _WATCH_SECONDS
        is_free = self._resources.fits(self._ray.available_resources()) >= self._wanted - self._size
        if is_free and slots(self._ray, self._resources) >= self._wanted:
            self._wanted = None
            self._tell()
