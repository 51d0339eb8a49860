"""Rows that don't come: nobody knows whether they will. So the wait has no bound, but a word."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

NOTICE_SECONDS = 30.0
OF_RAY = (
    "Ray computes them with what the workers leave free (`ray status` shows it): a data set that "
    "needs more CPUs, a GPU or a pool of actors waits for ever. Then use fewer workers, or more "
    "nodes."
)
OF_SPARK = (
    "Spark's job that sends them may wait for slots that another job holds: Spark's page shows it."
)


def with_notice(
    batches: Iterator[pa.RecordBatch],
    why: str,
    tell: Callable[[str], None],
    seconds: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """The same batches; tells, once, if the first doesn't come in time.

    >>> list(with_notice(iter([1, 2]), OF_SPARK, print))
    [1, 2]
    """
    seconds = NOTICE_SECONDS if seconds is None else seconds
    text = f"no rows have come for {seconds:g} s. {why}"
    timer = threading.Timer(seconds, tell, [text])
    timer.daemon = True
    timer.start()
    try:
        for batch in batches:
            timer.cancel()
            yield batch
    finally:
        timer.cancel()
