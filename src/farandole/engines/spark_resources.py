"""What each worker's task asks Spark for: cores, and a GPU of its own where Spark manages GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farandole import _spark
from farandole.errors import LaunchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TaskResources:
    """Of one worker's task."""

    cpus: int | None = None
    """None: spark.task.cpus."""
    gpus: int = 0
    profile: Any = None
    """Spark's ResourceProfile for the stage; None: the session's own settings do."""

    @classmethod
    def of(cls, session: SparkSession, device: str, cpus: int | None) -> TaskResources:
        """What so many cores on such a device come to, in this session.

        A GPU is asked for where executors have some, unless device is "cpu". If the session's own
        settings give a task less than one, or nothing, or other cores, this stage has a profile.
        """
        gpu = device != "cpu" and _amount(session, "executor") >= 1
        given = _amount(session, "task")
        if cpus is None and (not gpu or given >= 1):
            return cls(gpus=int(gpu))
        profile = _profile(session, cpus or _spark.task_cpus(session), gpu)
        return cls(cpus, int(gpu), profile)

    def too_few(self, wanted: int, slots: int) -> str:
        """What to say where fewer tasks fit than are wanted, if it is more than the usual."""
        if not self.gpus and self.cpus is None:
            return ""
        cores = f"{self.cpus} cores" if self.cpus else "its cores"
        each = f"{cores} and a GPU of its own" if self.gpus else cores
        other = 'device="cpu"' if self.gpus else "a smaller cpus_per_worker"
        return (
            f"{wanted} workers were asked for, each with {each}, but only {slots} such tasks can "
            f"run at the same time here. Use at most {slots} workers, more executors, or {other}."
        )


def _amount(session: SparkSession, whose: str) -> float:
    """How many GPUs an executor or a task has by the session's settings."""
    return float(session.conf.get(f"spark.{whose}.resource.gpu.amount", "0") or 0)


def _profile(session: SparkSession, cpus: int, gpu: bool) -> Any:
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(cpus)
    if gpu:
        requests.resource("gpu", 1)
    builder = ResourceProfileBuilder()
    builder.require(requests)
    profile: Any = builder.build  # a property in classic Spark's words
    try:
        _spark.register_profile(session, profile)
    except Exception as error:
        what = f"{cpus} cores" + " and a GPU" * gpu
        raise LaunchError(
            f"A task of {what} needs stage-level scheduling, which Spark refuses here "
            f"({_reason(error)}). Set spark.task.cpus={cpus}"
            + " and spark.task.resource.gpu.amount=1" * gpu
            + " when the session is made, and leave cpus_per_worker out."
        ) from None
    return profile


def _reason(error: Exception) -> str:
    """What Spark said, without Java's names around it."""
    words = str(error).partition("Exception: ")[2] or str(error)
    return (words.splitlines() or [type(error).__name__])[0].rstrip(". ")
