"""Engines: ways to run one function on N workers that can talk to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole import _spark
from farandole.engines.base import DEFAULT_HEARTBEAT, Engine, Task
from farandole.engines.fork_server import serve_forks
from farandole.engines.inline import InlineEngine
from farandole.engines.interrupt import Interrupts, kept_sigterm
from farandole.engines.output import Output
from farandole.engines.ray_cluster import import_ray, ray_environment, reload_token
from farandole.errors import InputError

if TYPE_CHECKING:
    from farandole.engines.fork_client import stop_fork_server
    from farandole.engines.local import LocalEngine
    from farandole.engines.ray import RayEngine
    from farandole.engines.spark import SparkEngine

__all__ = [
    "DEFAULT_HEARTBEAT",
    "Engine",
    "InlineEngine",
    "Interrupts",
    "LocalEngine",
    "Output",
    "RayEngine",
    "SparkEngine",
    "Task",
    "import_ray",
    "kept_sigterm",
    "ray_environment",
    "reload_token",
    "resolve",
    "serve_forks",
    "stop_fork_server",
]


def resolve(engine: str | Engine | None) -> Engine:
    """The engine that a name stands for; None means Spark when a session is active, else local.

    >>> resolve("local").name
    'local'
    """
    if engine is None:
        engine = "local" if _spark.active_session() is None else "spark"
    if engine == "local":
        from farandole.engines.local import LocalEngine

        return LocalEngine()
    if engine == "spark":
        from farandole.engines.spark import SparkEngine

        _spark.require_session()
        return SparkEngine()
    if engine == "ray":
        from farandole.engines.ray import RayEngine

        return RayEngine()
    if isinstance(engine, str) or not hasattr(engine, "run"):
        raise InputError(
            'engine must be "local", "spark", "ray" or an engine object. '
            f"Received: engine={engine!r}"
        )
    return engine


def __getattr__(name: str) -> object:
    if name == "LocalEngine":
        from farandole.engines.local import LocalEngine

        return LocalEngine
    if name == "stop_fork_server":
        from farandole.engines.fork_client import stop_fork_server

        return stop_fork_server
    if name == "RayEngine":
        from farandole.engines.ray import RayEngine

        return RayEngine
    if name == "SparkEngine":
        from farandole.engines.spark import SparkEngine

        return SparkEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
