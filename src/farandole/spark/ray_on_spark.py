"""ray_on_spark(): Ray inside of a Spark application, on slots of its executors."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from farandole import _spark
from farandole.arguments import check_integer
from farandole.engines import SparkEngine
from farandole.errors import InputError, LaunchError, MissingPackage, NotEnoughSlots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OBJECT_STORE = 256 << 20
_END_SECONDS = 30.0
"""How long Ray's processes may take to end, and Spark to have its slots back."""
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}


@contextmanager
def ray_on_spark(
    spark: SparkSession | None = None,
    *,
    workers: int,
    cpus_per_worker: int | None = None,
    driver_cpus: int = 0,
    object_store_memory: int = _OBJECT_STORE,
) -> Iterator[str]:
    """Ray on slots of a Spark application, until the end of the block; gives its address.

    Inside, this process is connected to it: `engine="ray"` trains and tunes there, and Ray's own
    libraries find it. Each of its nodes keeps a slot of Spark's until the end; at least one slot is
    left to Spark, for its own jobs. Ray asks everyone for a token, which is new for each block.

    Args:
        spark: a classic session; by default the active one.
        workers: how many nodes, each a task of Spark's.
        cpus_per_worker: cores of each; by default spark.task.cpus. Spark's local mode has no other.
        driver_cpus: cores of the driver's machine that Ray may use as well.
        object_store_memory: bytes of each node's store for Ray's objects. Rows of a DataFrame that
            is trained on don't go through it.

    >>> with ray_on_spark(spark, workers=2):  # doctest: +SKIP
    ...     farandole.train(network, frame, num_workers=2, engine="ray")
    """
    ray = _import_ray()
    session = spark or _spark.require_session()
    _check(ray, session, workers, cpus_per_worker, driver_cpus, object_store_memory)
    options = {
        "max_worker_nodes": workers,
        "num_cpus_head_node": driver_cpus,
        "object_store_memory_head_node": max(object_store_memory, 80 << 20),
        "object_store_memory_worker_node": object_store_memory,
        # Each is a process more on every node, and `ray.init` below asks for no logs.
        "head_node_options": {"include_dashboard": False, "include_log_monitor": "false"},
        "worker_node_options": {"include_log_monitor": "false"},
    }
    if not _spark.is_local(session):  # Ray's own default is all cores of an executor's machine
        cpus = cpus_per_worker or _spark.task_cpus(session)
        options |= {"num_cpus_worker_node": cpus, "num_gpus_worker_node": 0}
    with ExitStack() as stack:
        stack.enter_context(_environment(_asked_executor(session)))
        _spark.activate(session)
        stack.callback(_end, ray)  # before: Ctrl-C may come during a start that takes a minute
        with _quiet():
            address = _start(options)
        ray.init(address=address, **_QUIET)
        _check_nodes(ray, workers)
        yield address


class StartHook:
    """What `ray.util.spark` asks when it starts a cluster: its class is named by a variable."""

    started: Any = None
    """Ray's handle of the cluster that was started last; a process has one at a time."""

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
        return {name: os.environ[name] for name in (*_OF_NODES, "PATH")}


_OF_NODES = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_USAGE_STATS_ENABLED",
    "AUTOSCALER_HEARTBEAT_TIMEOUT_S",
)
_VARIABLES = (
    *_OF_NODES,
    "PATH",
    "RAY_ADDRESS",
    "RAY_ON_SPARK_START_HOOK",
    "PYTHONBREAKPOINT",  # Ray sets it
)


class _Executor(NamedTuple):
    """What an executor says of itself."""

    version: str | None
    """Of its Ray; None: it has none."""
    path: str
    """Where its programs are, that of Ray among them."""


def _import_ray() -> Any:
    try:
        import_module("ray.util.spark")
    except ImportError as error:
        raise MissingPackage("ray", "ray") from error
    return import_module("ray")


def _check(
    ray: Any,
    session: SparkSession,
    workers: int,
    cpus: int | None,
    driver_cpus: int,
    object_store_memory: int,
) -> None:
    """Raise what can be known before anything starts."""
    check_integer("workers", workers)
    check_integer("driver_cpus", driver_cpus, least=0)
    check_integer("object_store_memory", object_store_memory, least=80 << 20)
    _spark.check_running(session)
    if _spark.is_connect(session):
        raise InputError(
            "Ray on Spark needs a classic session: it starts its nodes with the sparkContext, "
            "which Spark Connect doesn't have. Run this on the cluster itself, or use a Ray that "
            "runs beside Spark: RayEngine(address=…)."
        )
    own = _spark.task_cpus(session)
    if cpus is not None:
        check_integer("cpus_per_worker", cpus)
        if _spark.is_local(session) and cpus != own:
            raise InputError(
                f"In Spark's local mode a node has the cores of a task, {own} (spark.task.cpus). "
                f"Received: cpus_per_worker={cpus}"
            )
    if ray.is_initialized():
        raise InputError(
            "This process is connected to a Ray already, at "
            f"{ray.get_runtime_context().gcs_address}: call ray.shutdown() first, or train there."
        )
    _check_slots(session, workers, cpus or own)


def _check_slots(session: SparkSession, workers: int, cpus: int) -> None:
    own = _spark.task_cpus(session)
    wanted = -(-workers * cpus // own) + 1
    slots = SparkEngine(session).settled_slots(wanted)
    if slots >= wanted:
        return
    most = max(0, (slots - 1) * own // cpus)
    raise NotEnoughSlots(
        wanted,
        slots,
        f"workers={workers} of {cpus} cores would take {wanted - 1} of Spark's {slots} slots until "
        "the end, and one has to be left for Spark's own jobs. "
        + (f"Use at most {most} workers" if most else "Give Spark more cores")
        + ", or local[N] with a larger N, or more executors.",
    )


def _asked_executor(session: SparkSession) -> str:
    """The PATH for Ray's nodes; raises if executors have no Ray, or another one."""
    own = import_module("ray").__version__
    _spark.set_up_python(session)
    try:
        found = session.sparkContext.parallelize([0], 1).map(_described).collect()[0]
    except Exception as error:
        said = [line for line in str(error).splitlines() if "ModuleNotFoundError" in line]
        why = said[-1].strip() if said else str(error).partition("\n")[0]
        raise LaunchError(
            f"Spark's executors can't run this: {why}. They need farandole and ray: see the "
            "guide's page on clusters."
        ) from error
    if found.version != own:
        has = "no ray" if found.version is None else f"ray {found.version}"
        raise LaunchError(
            f"Spark's executors have {has}, and the driver has ray {own}: install the same there "
            "(pip install 'farandole[ray]')."
        )
    return os.pathsep.join([_programs(), os.environ.get("PATH", os.defpath), found.path])


def _described(_: int) -> _Executor:
    """Runs in a task."""
    try:
        version = str(import_module("ray").__version__)
    except ImportError:
        version = None
    return _Executor(version, os.pathsep.join([_programs(), os.environ.get("PATH", os.defpath)]))


def _programs() -> str:
    """Where this Python's environment has its programs: Ray's nodes start by one called `ray`."""
    return os.path.dirname(sys.executable)


@contextmanager
def _environment(path: str) -> Iterator[None]:
    """The variables of Ray's processes, as they were before at the end."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.pop("RAY_ADDRESS", None)
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": before["RAY_USAGE_STATS_ENABLED"] or "0",
        # A node that needs longer to start is ended and replaced, for ever on a busy machine.
        "AUTOSCALER_HEARTBEAT_TIMEOUT_S": before["AUTOSCALER_HEARTBEAT_TIMEOUT_S"] or "120",
        "RAY_ON_SPARK_START_HOOK": f"{StartHook.__module__}.{StartHook.__qualname__}",
        "PATH": path,
    }
    _reload_token()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _reload_token()


def _reload_token() -> None:
    """Let Ray read mode and token again: it keeps those that this process had first."""
    with suppress(Exception):  # other versions may not keep them
        raylet = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Ray's advice on machines of 4 cores and 10 GB."""
    log = logging.getLogger("ray.util.spark")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _start(options: Mapping[str, Any]) -> str:
    """The address of the cluster.

    Ray's own limits are short for a busy machine (20 seconds for the head, 15 for what each node
    starts besides), and can't be set: what fails is tried once more.
    """
    for is_last in (False, True):
        StartHook.started = None
        try:
            address, _ = import_module("ray.util.spark").setup_ray_cluster(**options)
            return str(address)
        except Exception as error:
            if StartHook.started is not None:
                _wait_for_end(StartHook.started)
            if is_last or not isinstance(error, RuntimeError):
                why = str(error.__cause__ or error).strip().partition("\n")[0]
                raise LaunchError(
                    f"Ray could not start on Spark: {why} Are the machines busy? Ray gives its "
                    "processes 15 to 30 seconds to start. (RAY_ON_SPARK_JOB_SERVER_VERBOSE=1 in "
                    "the environment shows more.)"
                ) from error
    raise AssertionError("the last time returns or raises")


def _check_nodes(ray: Any, workers: int) -> None:
    """Ray merely warns if some of its nodes don't come."""
    nodes = sum(node["Alive"] for node in ray.nodes()) - 1
    if nodes < workers:
        raise LaunchError(
            f"Of {workers} nodes, Ray has {nodes}: Spark had no free slots for the others in two "
            "minutes. Are they busy with other jobs?"
        )


def _end(ray: Any) -> None:
    """Disconnect, end the cluster, and wait until it is gone."""
    cluster = StartHook.started
    with suppress(Exception):
        ray.shutdown()
    with _quiet(), suppress(RuntimeError):  # somebody has ended it before
        import_module("ray.util.spark").shutdown_ray_cluster()
    _wait_for_end(cluster)


def _wait_for_end(cluster: Any) -> None:
    """Until the head and the nodes of this machine have ended: Spark has its slots back then."""
    StartHook.started = None
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
