"""Spark's own log while workers run: what it says of a failed task, the error says in a sentence.

Each failed task is a wall of Java stacks in the driver's log, and in local mode in the terminal or
the notebook, above the one sentence that counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from farandole._spark.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGERS = tuple(
    f"org.apache.spark.{name}"
    for name in (
        "executor.Executor",
        "scheduler.TaskSetManager",
        "scheduler.DAGScheduler",
        "scheduler.TaskSchedulerImpl",
        "api.python.PythonRunner",
        "api.python.BasePythonRunner",
        "sql.execution.python.ArrowPythonRunner",
        "sql.execution.python.MapInBatchExec",
        "sql.execution.adaptive.AdaptiveSparkPlanExec",
        "util.Utils",
    )
)
"""Those that tell of tasks that fail or are killed."""

_lock = threading.Lock()
_runs = 0
_before: dict[str, Any] = {}
"""The levels that loggers of their own had; None: they went by their parents'."""


@contextmanager
def quiet_logs(session: SparkSession) -> Iterator[None]:
    """Let Spark's log leave out failed tasks, as long as anybody is in here.

    Whoever has asked for INFO or more gets all of it. A Connect server's log is elsewhere.
    """
    if is_connect(session):
        yield
        return
    jvm = session.sparkContext._jvm
    _enter(jvm)
    try:
        yield
    finally:
        _leave(jvm)


def _enter(jvm: Any) -> None:
    global _runs
    with _lock:
        _runs += 1
        if _runs == 1:
            with suppress(Exception):  # another logging system: then its log is as it is
                _silence(jvm)


def _leave(jvm: Any) -> None:
    global _runs
    with _lock:
        _runs -= 1
        if _runs == 0:
            with suppress(Exception):  # the session may have been stopped meanwhile
                _restore(jvm)


def _silence(jvm: Any) -> None:
    log4j = jvm.org.apache.logging.log4j
    own = log4j.LogManager.getContext(False).getConfiguration().getLoggers()
    for name in LOGGERS:
        level = log4j.LogManager.getLogger(name).getLevel()
        if level.isLessSpecificThan(log4j.Level.INFO):
            continue
        _before[name] = own.get(name).getLevel() if own.containsKey(name) else None
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _restore(jvm: Any) -> None:
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    while _before:
        name, level = _before.popitem()
        if level is None:
            context.getConfiguration().removeLogger(name)
        else:
            log4j.core.config.Configurator.setLevel(name, level)
    context.updateLoggers()
