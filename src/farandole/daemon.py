"""Processes with torch loaded, which fork workers: Spark's Python daemon, and the local engine's.

    spark.python.daemon.module = farandole.daemon

An import of torch takes seconds, and without this every new Python worker pays for it: there are
as many as tasks run at a time; Spark starts new ones after each failed task, `LocalEngine` in
each run.
"""

from __future__ import annotations

import sys
from importlib import import_module

_HEAVY = (
    "torch._dynamo",  # torch.optim imports it on first use
    "farandole.training",
    "farandole.engines.worker",
)


def main() -> None:
    """Load what workers need, and become Spark's own daemon.

    Where a package is missing it is that daemon and no more: functions that don't need the package
    run all the same, and ours say what is missing.
    """
    try:
        for name in (*_HEAVY, "pyspark.sql.pandas.types", "farandole.inference"):
            import_module(name)
    except ImportError as error:
        print(f"farandole.daemon: {error}. Workers start without torch.", file=sys.stderr)
    import_module("pyspark.daemon").manager()


def serve_local() -> None:
    """Load what workers need, and become the fork server of the local engine."""
    from farandole.engines import serve_forks

    serve_forks((*_HEAVY, "pyarrow.parquet", "farandole.api"))


if __name__ == "__main__":
    main()
