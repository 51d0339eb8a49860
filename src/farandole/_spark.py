"""The one file that touches what Spark keeps to itself."""

from __future__ import annotations

import inspect
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlparse
from weakref import WeakKeyDictionary

from farandole.errors import MissingPackage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.ml.param import Params
    from pyspark.sql import DataFrame, SparkSession

_LOCAL_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?$")
_COUNT_SECONDS = 60.0
_BY_BATCH = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
_FAULT_HANDLER = "spark.sql.execution.pyspark.udf.faulthandler.enabled"
_counts: WeakKeyDictionary[SparkSession, tuple[float, int]] = WeakKeyDictionary()
"""When a Connect session's partitions were counted, and how many there were."""
_MOST_TASKS = 10_000
_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""The files that each session has distributed."""


def active_session() -> SparkSession | None:
    """The active session, or None; starts nothing, and doesn't import Spark by itself."""
    import sys

    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or _default_session()


def require_session() -> SparkSession:
    """The active session, or a clear error."""
    from farandole.errors import InputError

    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingPackage("pyspark", "spark") from error
    session = SparkSession.getActiveSession() or _default_session()
    if session is None:
        raise InputError(
            "This needs a running Spark session: SparkSession.builder.getOrCreate() first. To do "
            'without Spark: engine="local" in train and run, farandole.predict for files.'
        )
    return session


def _default_session() -> SparkSession | None:
    """The session of another thread: `getActiveSession` only knows this thread's."""
    from pyspark.sql import SparkSession

    session = getattr(SparkSession, "_instantiatedSession", None)
    if session is not None and session._sc._jsc is not None:
        return session  # type: ignore[no-any-return]
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except Exception:  # Connect's packages are optional
        return None
    return ConnectSession.getActiveSession() or ConnectSession._get_default_session()  # type: ignore[return-value]


def check_running(session: SparkSession) -> None:
    """Raise if the session has been stopped."""
    from farandole.errors import InputError

    if _is_stopped(session):
        raise InputError(
            "The Spark session has been stopped. Start a new one with "
            "SparkSession.builder.getOrCreate(), and read the DataFrame again from it."
        )


def _is_stopped(session: SparkSession) -> bool:
    if is_connect(session):
        return bool(getattr(session, "is_stopped", False))
    context = session.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def is_connect(session: SparkSession) -> bool:
    """Whether the session speaks to a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_local(session: SparkSession) -> bool:
    """Whether tasks run in the driver's own JVM, so that all slots are there from the start."""
    return bool(_LOCAL_MASTER.match(session.conf.get("spark.master", "") or ""))


def thread(session: SparkSession, target: Callable[[], None]) -> threading.Thread:
    """A thread whose jobs have the caller's pool, group and tags, and that leaves nothing open."""
    from pyspark.util import InheritableThread

    return InheritableThread(target, session=session, daemon=True)


def add_tag(session: SparkSession, tag: str) -> None:
    """Give the jobs of this thread a name by which any thread can cancel them."""
    if is_connect(session):
        session.addTag(tag)
    else:  # the tags of a classic session are known to their own thread only
        session.sparkContext.addJobTag(tag)


def cancel(session: SparkSession, tag: str) -> None:
    """Cancel the running jobs that have this tag."""
    if is_connect(session):
        session.interruptTag(tag)
    else:
        session.sparkContext.cancelJobsWithTag(tag)


def distribute(session: SparkSession, path: str) -> None:
    """Have a file brought to every worker that will run tasks of this session, once."""
    sent = _sent.setdefault(session, set())
    if path not in sent:
        session.addArtifacts(path, file=True)
        sent.add(path)


def distributed_path(name: str) -> str:
    """Where a worker finds such a file."""
    from pyspark.core.files import SparkFiles

    return str(SparkFiles.get(name))


def task_device() -> str:
    """The device of the task that runs here: its GPU, if it was given one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    found = context.resources().get("gpu") if context is not None else None
    if found is None:
        return "cpu"
    import torch

    return f"cuda:{found.addresses[0]}" if torch.cuda.is_available() else "cpu"


def task_place() -> str:
    """Where the rows of this task stand, for an error that names one of them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else f" of partition {context.partitionId()}"


def read_by_row(session: SparkSession) -> None:
    """Let Python functions get rows, unless the user chose otherwise.

    Where Spark 4.3 reads files by the batch, it hands batches on to its Python functions, and fails
    if there is a vector among the columns.
    """
    if _BY_BATCH not in session.conf.getAll:
        session.conf.set(_BY_BATCH, "false")


def is_dataframe(data: object) -> bool:
    """Whether this is a Spark DataFrame, classic or Connect, without importing Spark."""
    return any(
        kind.__module__.startswith("pyspark.sql") and kind.__name__ == "DataFrame"
        for kind in type(data).__mro__
    )


def slots(session: SparkSession, *, fresh: bool = False) -> int:
    """How many tasks can run at the same time.

    On a Connect server that runs on a cluster this takes a small job, so its answer is kept for a
    minute, unless a `fresh` one is wanted. It is the default parallelism: the number of cores,
    unless somebody has set spark.default.parallelism (or spark.sql.leafNodeDefaultParallelism) to
    another. A client has no way to see through that, so the setting then counts as the truth.
    """
    check_running(session)
    if is_connect(session):
        return _slots_by_counting(session, fresh)
    context = session.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def running_tasks(session: SparkSession) -> int | None:
    """How many tasks run now, as Spark last counted them; None where it doesn't tell: Connect."""
    if is_connect(session):
        return None
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def has_dynamic_allocation(session: SparkSession) -> bool:
    """Whether Spark starts and ends executors as it needs them; on this machine alone it can't."""
    asked = str(session.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
    return asked and not is_local(session)


class TaskPlace(NamedTuple):
    """The executor that runs a task, and its host where that is known."""

    executor: str
    host: str

    def __str__(self) -> str:
        return f"executor {self.executor}" + (f" on {self.host}" if self.host else "")


def task_places(session: SparkSession, tag: str) -> dict[int, TaskPlace]:
    """Where the tasks of the last stage with a tag run or ran; Connect doesn't tell."""
    if is_connect(session) or is_local(session):
        return {}
    return {task.partitionId(): _place(task) for task in _tasks(session, tag)}


def executors_running(session: SparkSession, tag: str) -> list[str]:
    """The executors that, as far as Spark knows, still run tasks of the last stage with a tag."""
    if is_connect(session) or is_local(session):
        return []
    return [task.executorId() for task in _tasks(session, tag) if task.status() == "RUNNING"]


def ask_executor(session: SparkSession, executor: str) -> None:
    """Return when an executor has answered, or is known to be gone."""
    session.sparkContext._jsc.sc().getExecutorThreadDump(executor)


def replace_executors(session: SparkSession, executors: Iterable[str]) -> None:
    """Have Spark end executors and start others, as it does with those that don't answer.

    It forgets them at once: else it would wait for rows that they hold, and count their slots.
    """
    context: Any = session.sparkContext._jsc.sc()
    jvm: Any = session.sparkContext._jvm
    why = "it doesn't answer", jvm.scala.Option.empty(), True
    for executor in executors:
        context.killAndReplaceExecutor(executor)
        reason = jvm.org.apache.spark.scheduler.ExecutorProcessLost(*why)
        context.schedulerBackend().removeExecutor(executor, reason)


def _place(task: Any) -> TaskPlace:
    return TaskPlace(str(task.executorId()), str(task.host()))


def _tasks(session: SparkSession, tag: str) -> list[Any]:
    """Spark's records of the tasks of the last stage with a tag."""
    context = session.sparkContext._jsc.sc()
    jobs = context.statusTracker().getJobIdsForTag(tag)
    info = session.sparkContext.statusTracker().getJobInfo(max(jobs, default=-1))
    if info is None:
        return []
    stage, store = max(info.stageIds), context.statusStore()
    found = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), _MOST_TASKS)
    return [found.apply(index) for index in range(found.size())]


def _slots_by_counting(session: SparkSession, fresh: bool) -> int:
    """Connect shows neither executors nor context, but a range has one partition for each core."""
    master = session.conf.get("spark.master", "") or ""
    cpus = int(session.conf.get("spark.task.cpus", "1") or 1)
    found = _LOCAL_MASTER.match(master)
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


def driver_host(session: SparkSession) -> str:
    """The address under which workers may reach this process."""
    if is_connect(session):
        return _outgoing_address(_connect_host(session))
    return str(session.sparkContext.getConf().get("spark.driver.host", "127.0.0.1"))


def _connect_host(session: Any) -> str:
    return str(getattr(session.client, "host", None) or urlparse(str(session)).hostname or "")


def _outgoing_address(host: str) -> str:
    """The address of the interface that packets to `host` leave by; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host or "127.0.0.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def max_result_bytes(session: SparkSession) -> int | None:
    """spark.driver.maxResultSize in bytes; None where there is no limit."""
    text = str(session.conf.get("spark.driver.maxResultSize", "1g") or "1g").lower()
    found = re.match(r"(\d+)([kmgt]?)b?$", text)
    if not found or int(found[1]) == 0:
        return None
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema in which Python workers will see the rows of `frame`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    check_running(frame.sparkSession)
    # Spark 4.1 takes UTC without being told; later ones have a name for it.
    named = "timezone" in inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if named else {}
    return to_arrow_schema(frame.schema, prefers_large_types=False, **zone)


def numbered(frame: DataFrame, column: str) -> DataFrame:
    """The rows with their position in `frame`; Spark 4.1 has no function for that."""
    from farandole.errors import InputError

    if not hasattr(type(frame), "zipWithIndex"):
        raise InputError(
            f"shuffle=False needs Spark 4.2 or newer, and this is {frame.sparkSession.version}: "
            "leave shuffle on, or train without Spark on a Parquet file of these rows."
        )
    return frame.zipWithIndex(column)


def stage_metadata(instance: Params, session: SparkSession, params: dict[str, Any] | None) -> str:
    """The line of JSON that every saved pyspark.ml stage has; `params` in place of its own."""
    from pyspark.ml.util import DefaultParamsWriter

    return DefaultParamsWriter._get_metadata_to_save(instance, session, paramMap=params)


def qualified_path(session: SparkSession, path: str) -> str:
    """`path` as Spark would resolve it: a bare path belongs to fs.defaultFS."""
    if urlparse(path).scheme or is_connect(session):
        return path
    default = str(session.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:///")
    return path if default.startswith("file:") else f"{default.rstrip('/')}/{path.lstrip('/')}"


def set_up_python(session: SparkSession) -> None:
    """Prepare Python workers, as far as the user has not: which Python, and that crashes are told.

    On this machine workers run the driver's Python. Spark would take whatever `python3` comes
    first in the path, which seldom is the environment that the driver runs in.
    """
    import os
    import sys

    if "PYSPARK_PYTHON" not in os.environ and not is_connect(session) and is_local(session):
        session.sparkContext.pythonExec = sys.executable
    if _FAULT_HANDLER not in session.conf.getAll:
        session.conf.set(_FAULT_HANDLER, "true")


def local_session(name: str, cores: int | str = 2) -> SparkSession:
    """A session on this machine alone: workers use this Python, and nothing listens outside."""
    import os
    import sys

    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingPackage("pyspark", "spark") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": "farandole.daemon",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(cores if isinstance(cores, int) else 8),
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
