"""Python workers: which Python, the files that they get, and what a task knows of itself."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from weakref import WeakKeyDictionary

from farandole._spark.sessions import is_connect, is_local
from farandole.devices import choose_device

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BY_BATCH = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
_FAULT_HANDLER = "spark.sql.execution.pyspark.udf.faulthandler.enabled"
_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""The files that each session has distributed."""


def set_up_python(session: SparkSession) -> None:
    """Prepare Python workers, as far as the user has not: which Python, and that crashes are told.

    On this machine workers run the driver's Python. Spark would take whatever `python3` comes
    first in the path, which seldom is the environment that the driver runs in.
    """
    if "PYSPARK_PYTHON" not in os.environ and not is_connect(session) and is_local(session):
        session.sparkContext.pythonExec = sys.executable
    if session.conf.get(_FAULT_HANDLER, None) is None:  # all of them would be a call each
        session.conf.set(_FAULT_HANDLER, "true")


def read_by_row(session: SparkSession) -> None:
    """Let Python functions get rows, unless the user chose otherwise.

    Where Spark 4.3 reads files by the batch, it hands batches on to its Python functions, and fails
    if there is a vector among the columns.
    """
    if session.conf.get(_BY_BATCH, None) is None:
        session.conf.set(_BY_BATCH, "false")


def distribute(session: SparkSession, path: str, *, python: bool = False) -> None:
    """Have a file brought to every worker that will run tasks of this session, once.

    With `python` it is an archive of modules, which workers can import.
    """
    sent, name = _sent.setdefault(session, set()), os.path.basename(path) if python else path
    if name not in sent:
        session.addArtifacts(path, file=not python, pyfile=python)
        sent.add(name)


def distributed_path(name: str) -> str:
    """Where a worker finds such a file."""
    from pyspark.core.files import SparkFiles

    return str(SparkFiles.get(name))


def granted_gpus(context: Any) -> tuple[str, ...]:
    """The addresses of the GPUs that Spark gave a task, by its context; None is no task."""
    found = context.resources().get("gpu") if context is not None else None
    return () if found is None else tuple(found.addresses)


def task_device(asked: str) -> str:
    """The device of the task that runs here: the GPU that Spark granted it, which has to be there.

    By "auto", a task that was granted none takes none: nobody knows how many others are beside it.
    """
    from pyspark import TaskContext

    granted = granted_gpus(TaskContext.get())
    return "cpu" if asked == "auto" and not granted else choose_device(asked, granted)


def task_place() -> str:
    """Where the rows of this task stand, for an error that names one of them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else f" of partition {context.partitionId()}"


def hide_traceback() -> None:
    """Let Spark show only the sentence of the error that this Python worker is about to raise.

    The setting goes with the process, which ends with its error.
    """
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


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
