"""Jobs by their tags, and where Spark runs their tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from farandole._spark.sessions import is_connect, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_TASKS = 10_000


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


def running_tasks(session: SparkSession) -> int | None:
    """How many tasks run now, as Spark last counted them; None where it doesn't tell: Connect."""
    if is_connect(session):
        return None
    tracker = session.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


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
    first = sorted(_tasks(session, tag), key=lambda task: task.taskId(), reverse=True)
    return {task.partitionId(): _place(task) for task in first}


def first_failure(session: SparkSession, tag: str) -> str | None:
    """Which of the tasks with a tag failed first, and why, in Spark's words; Connect doesn't tell.

    Spark runs an ordinary task again when it fails, and speaks of its last attempt only.
    """
    if is_connect(session):
        return None
    tasks = _tasks(session, tag, all_attempts=True)
    failed = [t for t in tasks if t.status() == "FAILED" and t.errorMessage().isDefined()]
    if not failed:
        return None
    first = min(failed, key=lambda task: task.taskId())
    return f"Task of rank {first.partitionId()}: {first.errorMessage().get()}"


def executors_running(session: SparkSession, tag: str) -> list[str]:
    """The executors that, as far as Spark knows, still run tasks of the last stage with a tag."""
    if is_connect(session) or is_local(session):
        return []
    return [task.executorId() for task in _tasks(session, tag) if task.status() == "RUNNING"]


def has_running_tasks(session: SparkSession, tag: str) -> bool:
    """Whether tasks of the last stage with a tag run, as Spark last heard; Connect doesn't tell."""
    return not is_connect(session) and any(t.status() == "RUNNING" for t in _tasks(session, tag))


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


def _tasks(session: SparkSession, tag: str, *, all_attempts: bool = False) -> list[Any]:
    """Spark's records of the tasks of the last stage with a tag: its last attempt, or all."""
    context = session.sparkContext._jsc.sc()
    jobs = context.statusTracker().getJobIdsForTag(tag)
    info = session.sparkContext.statusTracker().getJobInfo(max(jobs, default=-1))
    if info is None:
        return []
    stage, store = max(info.stageIds), context.statusStore()
    last = store.lastStageAttempt(stage).attemptId()
    found = [
        store.taskList(stage, attempt, _MOST_TASKS)
        for attempt in range(0 if all_attempts else last, last + 1)
    ]
    return [tasks.apply(index) for tasks in found for index in range(tasks.size())]
