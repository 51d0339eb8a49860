"""A schedule, simulated: whose parts are in each worker's chunks, and what all workers send.

No numbers are added here. A chunk is the set of workers whose parts went into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from string import ascii_lowercase

import numpy as np

from farandole.parallel import Schedule, Step, schedules

PartialSums = tuple[tuple[frozenset[int], ...], ...]
"""By worker, then by chunk: whose parts are in it. Empty: the worker doesn't have it."""

Words = Callable[[int, frozenset[int]], str]
"""What to write into a chunk: its number, and whose parts are in it."""


def own_parts(schedule: Schedule) -> PartialSums:
    """Every worker has a part of every chunk: what a sum begins with."""
    return tuple((frozenset([worker]),) * schedule.chunks for worker in range(schedule.workers))


def finished_parts(held: PartialSums) -> PartialSums:
    """Leave to each worker only the chunks that have all workers' parts in them."""
    all_workers = frozenset(range(len(held)))
    return tuple(
        tuple(chunk if chunk == all_workers else frozenset() for chunk in chunks) for chunks in held
    )


def simulate(schedule: Schedule, start: PartialSums) -> Iterator[tuple[Step, PartialSums]]:
    """Each step of a schedule, and what all workers have after it.

    >>> from farandole.parallel.schedules import ring
    >>> schedule = ring(3)
    >>> *_, (step, held) = simulate(schedule, own_parts(schedule))
    >>> {chunk for chunks in held for chunk in chunks} == {frozenset({0, 1, 2})}
    True
    """
    held = start
    for step in schedule.steps():
        held = _after(step, held)
        yield step, held


def _after(step: Step, held: PartialSums) -> PartialSums:
    now = [list(chunks) for chunks in held]
    for sender, receiver, chunk in transfers(step):
        coming = held[sender][chunk]  # as it was: the transfers of a step don't see each other
        # Something that was added twice would be a wrong sum, and a set would not show it.
        assert not (step.adds and coming & now[receiver][chunk]), (sender, receiver, chunk)
        now[receiver][chunk] = coming | now[receiver][chunk] if step.adds else coming
    return tuple(map(tuple, now))


def transfers(step: Step) -> Iterator[tuple[int, int, int]]:
    """Sender, receiver and chunk of each transfer, as plain numbers."""
    places = (step.senders.tolist(), step.receivers.tolist(), step.chunks.tolist())
    return zip(*places, strict=True)


def letter(chunk: int) -> str:
    """What the course calls a chunk: a, b, c …"""
    return ascii_lowercase[chunk]


def as_sum(workers: int) -> Words:
    """What a chunk holds, in words: the sum in full, or in short how many parts are in it.

    >>> as_sum(5)(0, frozenset({2, 0, 1})), as_sum(8)(0, frozenset({2, 0, 1}))
    ('a1+a2+a3', 'a 3/8')
    """

    def words(chunk: int, parts: frozenset[int]) -> str:
        if not parts:
            return ""
        if workers <= 5:
            return "+".join(f"{letter(chunk)}{part + 1}" for part in sorted(parts))
        return f"{letter(chunk)} {len(parts)}/{workers}"

    return words


BYTES = 4  # of a value: gradients are single precision


def sent_by(schedule: Schedule, step: Step, values: int) -> schedules.Array:
    """How many values each worker sends in a step."""
    lengths = np.array([end - start for start, end in schedule.bounds(values)])
    total = np.zeros(schedule.workers, np.int64)
    np.add.at(total, step.senders, lengths[step.chunks])
    return total


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
