"""What Ray's nodes need of Spark's executors: the driver's version of Ray, and the path to it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from farandole import _spark
from farandole.errors import LaunchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Executor(NamedTuple):
    """What an executor says of itself."""

    version: str | None
    """Of its Ray; None: it has none."""
    path: str
    """Where its programs are, that of Ray among them."""


def path_of_nodes(session: SparkSession) -> str:
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
