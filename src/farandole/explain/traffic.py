"""Traffic: how many bytes a schedule lets each worker send and receive."""

from __future__ import annotations

import numpy as np

from farandole.parallel import Schedule, Step, schedules

BYTES = 4  # of a value: gradients are single precision


def sent_by(schedule: Schedule, step: Step, values: int) -> schedules.Array:
    """How many values each worker sends in a step."""
    return _counted(schedule, step.senders, step.chunks, values)


def received_by(schedule: Schedule, step: Step, values: int) -> schedules.Array:
    """How many values each worker receives in a step."""
    return _counted(schedule, step.receivers, step.chunks, values)


def busiest(schedule: Schedule, values: int) -> int:
    """How many values the worker that sends most sends.

    >>> from farandole.parallel.schedules import parameter_server, ring
    >>> busiest(ring(5), 10), busiest(parameter_server(5), 10)
    (16, 40)
    """
    return int(np.max(sum(sent_by(schedule, step, values) for step in schedule.steps())))


def megabytes(values: int) -> str:
    """The size of so many values.

    >>> megabytes(1_600_000), megabytes(100)
    ('6.4 MB', '400 B')
    """
    size = float(values * BYTES)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:,.0f} {unit}"
        size /= 1000
    raise AssertionError(unit)


def _counted(
    schedule: Schedule, places: schedules.Array, chunks: schedules.Array, values: int
) -> schedules.Array:
    lengths = np.array([end - start for start, end in schedule.bounds(values)])
    total = np.zeros(schedule.workers, np.int64)
    np.add.at(total, places, lengths[chunks])
    return total
