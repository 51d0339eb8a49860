"""ray_on_spark(): Ray inside of a Spark application, on slots of its executors."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from farandole import _spark
from farandole.arguments import check_integer
from farandole.engines import (
    Interrupts,
    RayEngine,
    SparkEngine,
    import_ray,
    kept_sigterm,
    ray_environment,
    reload_token,
)
from farandole.errors import InputError, LaunchError, NotEnoughSlots
from farandole.spark.ray_executors import path_of_nodes
from farandole.spark.ray_start import NODE_VARIABLES, StartHook, kept_job_servers, wait_for_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OBJECT_STORE = 256 << 20
_VARIABLES = (
    *NODE_VARIABLES,
    "PATH",
    "RAY_ADDRESS",
    "RAY_ON_SPARK_START_HOOK",
    "PYTHONBREAKPOINT",  # Ray sets it
)


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

    Ctrl-C during the start is taken when the start is over: amid it, processes would be left.

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
    ray = import_ray("ray.util.spark")
    session = spark or _spark.require_session()
    _check(ray, session, workers, cpus_per_worker, driver_cpus, object_store_memory)
    options = {
        "max_worker_nodes": workers,
        "num_cpus_head_node": driver_cpus,
        "object_store_memory_head_node": object_store_memory,
        "object_store_memory_worker_node": object_store_memory,
        # Each is a process more on every node, and this process is connected without logs.
        "head_node_options": {"include_dashboard": False, "include_log_monitor": "false"},
        "worker_node_options": {"include_log_monitor": "false"},
    }
    if not _spark.is_local(session):  # Ray's own default is all cores of an executor's machine
        cpus = cpus_per_worker or _spark.task_cpus(session)
        options |= {"num_cpus_worker_node": cpus, "num_gpus_worker_node": 0}
    with ExitStack() as stack:
        stack.callback(reload_token)
        stack.enter_context(_environment(path_of_nodes(session)))
        stack.enter_context(kept_sigterm())
        _spark.activate(session)
        stack.callback(_end, ray)
        with _quiet():
            address = _start(options)
        RayEngine(address).connect()
        _check_nodes(ray, workers)
        yield address


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


@contextmanager
def _environment(path: str) -> Iterator[None]:
    """The variables of Ray's processes."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED") or "0",
        # A node that needs longer to start is ended and replaced, for ever on a busy machine.
        "AUTOSCALER_HEARTBEAT_TIMEOUT_S": os.environ.get("AUTOSCALER_HEARTBEAT_TIMEOUT_S") or "120",
        "RAY_ON_SPARK_START_HOOK": f"{StartHook.__module__}.{StartHook.__qualname__}",
        "PATH": path,
    }
    with ray_environment(variables, _VARIABLES):
        os.environ.pop("RAY_ADDRESS", None)
        yield


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
    starts besides), and can't be set: what fails is tried once more. Ray has a handle of what it
    has started only when the head is up, so that Ctrl-C has to wait.
    """
    with Interrupts() as interrupts:
        try:
            try:
                return _started(options)
            except RuntimeError:
                if interrupts.count:
                    raise
                return _started(options)
        except Exception as error:
            why = str(error.__cause__ or error).strip().partition("\n")[0]
            raise LaunchError(
                f"Ray could not start on Spark: {why} Are the machines busy? Ray gives its "
                "processes 15 to 30 seconds to start. (RAY_ON_SPARK_JOB_SERVER_VERBOSE=1 in "
                "the environment shows more.)"
            ) from error
        finally:
            if interrupts.count:
                raise interrupts.error()


def _started(options: Mapping[str, Any]) -> str:
    StartHook.started = None
    try:
        with kept_job_servers():
            address, _ = import_module("ray.util.spark").setup_ray_cluster(**options)
        return str(address)
    except Exception:
        wait_for_end()
        raise


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
    with suppress(Exception):
        ray.shutdown()
    with _quiet(), suppress(RuntimeError):  # somebody has ended it before
        import_module("ray.util.spark").shutdown_ray_cluster()
    wait_for_end()
