"""How many tasks run at once, and what each of them gets."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from farandole._spark.sessions import LOCAL_MASTER, check_running, is_connect, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNT_SECONDS = 60.0
_counts: WeakKeyDictionary[SparkSession, tuple[float, int]] = WeakKeyDictionary()
"""When a Connect session's partitions were counted, and how many there were."""


def slots(session: SparkSession, *, fresh: bool = False, profile: Any = None) -> int:
    """How many tasks can run at the same time; with a `profile`, tasks of that one.

    On a Connect server that runs on a cluster this takes a small job, so its answer is kept for a
    minute, unless a `fresh` one is wanted. It is the default parallelism: the number of cores,
    unless somebody has set spark.default.parallelism (or spark.sql.leafNodeDefaultParallelism) to
    another. A client has no way to see through that, so the setting then counts as the truth.
    """
    check_running(session)
    if is_connect(session):
        return _slots_by_counting(session, fresh, _profile_cpus(profile) or task_cpus(session))
    context = session.sparkContext._jsc.sc()
    default = context.resourceProfileManager().defaultResourceProfile()
    asked = default if profile is None else profile._java_resource_profile
    return int(context.maxNumConcurrentTasks(asked))


def task_cpus(session: SparkSession) -> int:
    """The cores of a task, by the session's settings."""
    return int(session.conf.get("spark.task.cpus", "1") or 1)


def register_profile(session: SparkSession, profile: Any) -> None:
    """Make a ResourceProfile known to Spark; raises if it can't schedule by one here."""
    if is_connect(session):
        profile.id  # noqa: B018  # asking for it registers the profile with the server
    else:
        session.sparkContext._jsc.sc().resourceProfileManager().addResourceProfile(
            profile._java_resource_profile
        )


def _profile_cpus(profile: Any) -> int | None:
    return None if profile is None else int(profile.taskResources["cpus"].amount)


def has_dynamic_allocation(session: SparkSession) -> bool:
    """Whether Spark starts and ends executors as it needs them; on this machine alone it can't."""
    asked = str(session.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
    return asked and not is_local(session)


def _slots_by_counting(session: SparkSession, fresh: bool, cpus: int) -> int:
    """Connect shows neither executors nor context, but a range has one partition for each core."""
    master = session.conf.get("spark.master", "") or ""
    found = LOCAL_MASTER.match(master)
    if found and found[2] != "*":
        return max(1, int(found[2] or 1) // cpus)
    counted, partitions = _counts.get(session, (-math.inf, 0))
    if fresh or time.monotonic() - counted > _COUNT_SECONDS:
        partitions = _partitions_of_a_range(session)
        _counts[session] = time.monotonic(), partitions
    return max(1, partitions // cpus)


def _partitions_of_a_range(session: SparkSession) -> int:
    from pyspark.sql import functions as F

    return session.range(1 << 14).select(F.spark_partition_id()).distinct().count()
