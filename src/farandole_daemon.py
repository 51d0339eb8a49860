"""Spark's Python daemon, with torch loaded where farandole is installed, else as Spark has it.

    spark.python.daemon.module = farandole_daemon
    spark.files                = /path/of/this/farandole_daemon.py

A file of its own, which needs nothing: Spark brings it to the executors, and starts it there in
the folder it has brought it to. `farandole.spark.daemon_settings()` gives both settings.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Become farandole's daemon, or Spark's own where there is no farandole that can be loaded."""
    try:
        from farandole.daemon import main as start
    except Exception as error:  # any: functions that don't need farandole have to run all the same
        print(
            f"farandole_daemon: {type(error).__name__}: {error}. This is Spark's own daemon: "
            "workers start without torch.",
            file=sys.stderr,
        )
        from pyspark.daemon import manager as start
    start()


if __name__ == "__main__":
    main()
