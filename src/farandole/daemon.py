"""Processes with torch loaded, which fork workers: Spark's Python daemon, and the local engine's.

    spark.python.daemon.module = farandole.daemon

An import of torch takes seconds, and without this every new Python worker pays for it: there are
as many as tasks run at a time; Spark starts new ones after each failed task, `LocalEngine` in
each run. Where executors may lack farandole, `farandole_daemon` is this one or Spark's own:
`farandole.spark.daemon_settings()`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

_HEAVY = (
    "torch._dynamo",  # torch.optim imports it on first use
    "farandole.training",
    "farandole.engines.worker",
)
_OF_DATAFRAMES = {"SPARK_SIMPLIFIED_TRACEBACK", "PYTHON_FAULTHANDLER_DIR"}
"""Spark gives one of these to the daemon of DataFrames' functions, and not to that of RDDs'."""


def main() -> None:
    """Load what workers need, and become Spark's own daemon.

    RDDs have a daemon of their own, which a session starts when it saves its first pipeline:
    nothing of ours runs on RDDs, so that one loads nothing. Where a package is missing it is
    Spark's daemon and no more: functions that don't need the package run all the same, and ours
    say what is missing.
    """
    try:
        if _OF_DATAFRAMES & os.environ.keys():
            for name in (*_HEAVY, "pyspark.sql.pandas.types", "farandole.inference"):
                import_module(name)
    except (ImportError, OSError) as error:  # OSError: a library that torch or pyarrow can't load
        print(f"farandole.daemon: {error}. Workers start without torch.", file=sys.stderr)
    gc.collect()
    gc.freeze()  # a worker collects its garbage after each task: not through all of torch
    import_module("pyspark.daemon").manager()


def serve_local(libraries: Sequence[str] = ()) -> None:
    """Load what workers need, and become the fork server of the local engine."""
    from farandole.engines import serve_forks

    serve_forks((*_HEAVY, "pyarrow.parquet", "farandole.api", *libraries))


if __name__ == "__main__":
    main()
