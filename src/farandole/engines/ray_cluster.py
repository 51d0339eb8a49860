"""Which Ray there is: one that runs already, one at an address, or one that is started here."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from farandole.engines.interrupt import Interrupts, kept_sigterm
from farandole.errors import InputError, LaunchError, MissingPackage

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
"""What workers print comes over their links, each line with its rank."""
_OF_RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED")
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


def can_grow(ray: Any) -> bool:
    """Whether nodes may still come: not to a Ray that was started here."""
    return bool(ray.get_runtime_context().gcs_address != _started)
