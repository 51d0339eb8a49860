"""Processes with torch loaded, which fork workers: Spark's Python daemon, and the local engine's.

    spark.python.daemon.module = farandole.daemon

An import of torch takes seconds, and without this every new Python worker pays for it: there are
as many as tasks run at a time; Spark starts new ones after each failed task, `LocalEngine` in
each run.
"""

from __future__ import annotations

from importlib import import_module

from farandole.engines import serve_forks

_HEAVY = (
    "torch._dynamo",  # torch.optim imports it on first use
    "farandole.training",
    "farandole.engines.worker",
)


def main() -> None:
    """Load what workers need, and become Spark's own daemon."""
    for name in (*_HEAVY, "pyspark.sql.pandas.types", "farandole.inference"):
        import_module(name)
    import_module("pyspark.daemon").manager()


def serve_local() -> None:
    """Load what workers need, and become the fork server of the local engine."""
    serve_forks((*_HEAVY, "pyarrow.parquet", "farandole.api"))


if __name__ == "__main__":
    main()
