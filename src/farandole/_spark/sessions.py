"""Which session there is, whether it runs, and of which kind it is."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from farandole.errors import InputError, MissingPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?$")


def active_session() -> SparkSession | None:
    """The active session, or None; starts nothing, and doesn't import Spark by itself."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or _default_session()


def require_session() -> SparkSession:
    """The active session, or a clear error."""
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


def activate(session: SparkSession) -> None:
    """Make a classic session the active one of this thread, as libraries of others expect it."""
    jvm: Any = session._jvm
    jvm.SparkSession.setActiveSession(session._jsparkSession)


def check_running(session: SparkSession) -> None:
    """Raise if the session has been stopped."""
    if is_stopped(session):
        raise InputError(
            "The Spark session has been stopped. Start a new one with "
            "SparkSession.builder.getOrCreate(), and read the DataFrame again from it."
        )


def is_stopped(session: SparkSession) -> bool:
    """Whether the session has been stopped, by whomever."""
    if is_connect(session):
        return bool(getattr(session, "is_stopped", False))
    context = session.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def is_connect(session: SparkSession) -> bool:
    """Whether the session speaks to a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_local(session: SparkSession) -> bool:
    """Whether tasks run in the driver's own JVM, so that all slots are there from the start."""
    return bool(LOCAL_MASTER.match(session.conf.get("spark.master", "") or ""))


def local_session(name: str, cores: int | str = 2) -> SparkSession:
    """A session on this machine alone: workers use this Python, and nothing listens outside."""
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
