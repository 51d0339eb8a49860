"""Spark's Python daemon with torch loaded: the workers that it forks have it from the start.

    spark.python.daemon.module = farandole.daemon

An import of torch takes seconds, and without this every new Python worker of Spark's pays for it:
there are as many as tasks run at a time, and new ones after each failed task.
"""

from __future__ import annotations

from importlib import import_module

_HEAVY = (
    "torch._dynamo",  # torch.optim imports it on first use
    "pyspark.sql.pandas.types",
    "farandole.training",
    "farandole.inference",
    "farandole.engines",
)


def main() -> None:
    """Load what workers need, and become Spark's own daemon."""
    for name in _HEAVY:
        import_module(name)
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
