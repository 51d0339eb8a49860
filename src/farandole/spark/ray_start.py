"""What `ray.util.spark` starts on the driver's machine, kept so that all of it ends."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

NODE_VARIABLES = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_USAGE_STATS_ENABLED",
    "AUTOSCALER_HEARTBEAT_TIMEOUT_S",
)
_END_SECONDS = 30.0
"""How long Ray's processes may take to end, and Spark to have its slots back."""


class StartHook:
    """What `ray.util.spark` asks when it starts a cluster: its class is named by a variable."""

    started: Any = None
    """Ray's handle of the cluster that was started last; a process has one at a time."""
    job_servers: tuple[Any, ...] = ()
    """Where Ray's autoscaler asks Spark for nodes: a port each, without a token."""

    def get_default_temp_root_dir(self) -> str:
        """A short path: sockets are there, whose names may have 107 bytes."""
        return os.environ.get("RAY_TMPDIR", "/tmp")

    def on_ray_dashboard_created(self, port: int) -> None:
        """There is none."""

    def on_cluster_created(self, cluster: Any) -> None:
        """Keep it, to see that it ends."""
        StartHook.started = cluster

    def on_spark_job_created(self, group: str) -> None:
        """A node's job."""

    def custom_environment_variables(self) -> Mapping[str, str]:
        """What nodes need, wherever Spark runs them; it goes with their tasks."""
        return {name: os.environ[name] for name in (*NODE_VARIABLES, "PATH")}


@contextmanager
def kept_job_servers() -> Iterator[None]:
    """Keep what Ray starts as a server of Spark's jobs: it forgets that of a head that failed."""
    module: Any = import_module("ray.autoscaler._private.spark.spark_job_server")
    start = module._start_spark_job_server

    def kept(*args: Any) -> Any:
        server = start(*args)
        StartHook.job_servers += (server,)
        return server

    module._start_spark_job_server = kept
    try:
        yield
    finally:
        module._start_spark_job_server = start


def wait_for_end() -> None:
    """Until the head and the nodes of this machine have ended: Spark has its slots back then."""
    _end_job_servers()
    cluster, StartHook.started = StartHook.started, None
    if cluster is None:
        return
    deadline = time.monotonic() + _END_SECONDS
    with suppress(subprocess.TimeoutExpired):
        cluster.head_proc.wait(_END_SECONDS)
    # The last process of a machine removes the folder that they share.
    while os.path.exists(cluster.temp_dir) and time.monotonic() < deadline:
        time.sleep(0.1)
    with suppress(OSError):
        os.remove(f"{cluster.temp_dir}.lock")


def _end_job_servers() -> None:
    """Close their ports too, which Ray itself never does."""
    servers, StartHook.job_servers = StartHook.job_servers, ()
    cluster = StartHook.started
    for server in servers:
        is_shut = cluster is not None and cluster.is_shutdown and cluster.spark_job_server is server
        with suppress(Exception):  # the session may have been stopped meanwhile
            if not is_shut:  # Ray sleeps for a second there
                server.shutdown()
        server.server_close()
