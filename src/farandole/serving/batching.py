"""Batcher: requests that come together go through the network together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Protocol

import numpy as np

from farandole.arguments import check_integer
from farandole.data import RaggedArray
from farandole.inference import Prediction
from farandole.serving.answers import Answers, lengths_of
from farandole.serving.failure import reason
from farandole.serving.metrics import ModelMetrics
from farandole.serving.model import Model, Rows
from farandole.serving.pace import Pace
from farandole.serving.refusal import overloaded


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How requests are put together."""

    max_batch: int = 64
    """So many rows at most, fewer where that is quicker for all (see `pace`); a single request may
    have more."""
    max_delay: float = 0.0
    """Seconds that a request waits for others. Without, those go together that have come in while
    the network was busy."""
    max_queue: int = 1024
    """So many rows may wait, before requests are turned away."""

    def check(self) -> None:
        """Raise if a number can't be meant."""
        check_integer("max_batch", self.max_batch)
        check_integer("max_queue", self.max_queue)


class Waiter(Protocol):
    """Whoever waits for answers: a future, or what can be used like one."""

    def done(self) -> bool:
        """Whether it needs none any more."""

    def set_result(self, result: Any, /) -> None:
        """Here they are."""

    def set_exception(self, exception: Exception, /) -> None:
        """Why there are none."""


@dataclass(slots=True, eq=False)
class _Entry:
    columns: Sequence[Rows]
    names: Sequence[str]
    rows: int
    waiter: Waiter
    deadline: float


class Batcher:
    """Puts the rows of many requests to one model together, and gives each its part.

    Everything but the network itself happens in the event loop, so there are no locks.
    """

    def __init__(
        self, model: Model, batching: Batching, metrics: ModelMetrics, threads: ThreadPoolExecutor
    ) -> None:
        self.model = model
        self.metrics = metrics
        self.pace = Pace(batching.max_batch, inline=False)
        """How many rows go at once, and whether in the event loop."""
        self._batching = batching
        self._threads = threads
        self._waiting: deque[_Entry] = deque()
        self._rows = 0
        self._busy = False
        self._timer: asyncio.Handle | None = None

    @property
    def waits(self) -> bool:
        """Whether a request that comes now won't be answered at once."""
        more = self._rows > self.pace.rows  # than the next turn of the loop computes
        return self._busy or not self.pace.inline or more or self._batching.max_delay > 0

    def submit(
        self, columns: Sequence[Rows], names: Sequence[str], seconds: float
    ) -> asyncio.Future[Answers]:
        """These outputs for these rows, if their turn comes in so many seconds."""
        future: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self.put(future, columns, names, seconds)
        return future

    def put(
        self, waiter: Waiter, columns: Sequence[Rows], names: Sequence[str], seconds: float
    ) -> None:
        """The same for who isn't a future: the answers are given in a later turn of the loop."""
        rows = len(columns[0])
        if self._rows and self._rows + rows > self._batching.max_queue:
            self.metrics.turned_away += 1
            raise overloaded("Too many requests are waiting: try again in a second.")
        self._waiting.append(_Entry(columns, names, rows, waiter, monotonic() + seconds))
        self._rows += rows
        self.metrics.waiting = self._rows
        if not self._busy:
            self._schedule()

    def _schedule(self) -> None:
        most = self._batching.max_delay
        if self._timer is not None and most == 0:
            return
        full = self._rows >= self.pace.rows
        if self._timer is not None:
            if not full:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        wait = most and not full
        self._timer = loop.call_later(most, self._run) if wait else loop.call_soon(self._run)

    def _run(self) -> None:
        self._timer = None
        batch = self._take()
        if batch:
            rows = sum(entry.rows for entry in batch)
            self.metrics.batch(rows)
            if self.pace.inline and rows <= self.pace.rows:
                self._give(batch, _worked_out(self.model, batch))
            else:
                self._busy = True
                done = self._threads.submit(_worked_out, self.model, batch)
                loop = asyncio.get_running_loop()
                done.add_done_callback(
                    lambda found: loop.call_soon_threadsafe(self._finish, batch, found.result())
                )
                return
        if self._waiting:
            self._schedule()

    def _finish(self, batch: list[_Entry], found: list[Any]) -> None:
        self._busy = False
        self._give(batch, found)
        if self._waiting:
            self._schedule()

    def _take(self) -> list[_Entry]:
        """The next batch, without requests whose senders have gone or have waited too long."""
        batch: list[_Entry] = []
        rows, now = 0, monotonic()
        while self._waiting:
            entry = self._waiting[0]
            lost = entry.waiter.done()
            late = not lost and entry.deadline < now
            if not (lost or late) and batch and rows + entry.rows > self.pace.rows:
                break
            self._waiting.popleft()
            self._rows -= entry.rows
            if late:
                entry.waiter.set_exception(overloaded("The request has waited for too long."))
            elif not lost:
                batch.append(entry)
                rows += entry.rows
            self.metrics.dropped += lost or late
        self.metrics.waiting = self._rows
        return batch

    @staticmethod
    def _give(batch: list[_Entry], found: list[Any]) -> None:
        for entry, one in zip(batch, found, strict=True):
            if entry.waiter.done():
                continue
            if isinstance(one, Exception):
                entry.waiter.set_exception(one)
            else:
                entry.waiter.set_result(one)


def _worked_out(model: Model, batch: list[_Entry]) -> list[Answers | Exception]:
    """For each request its answers, or why there are none: a bad one doesn't take others along."""
    try:
        found = model.answer(joined([entry.columns for entry in batch]))
        return _shared(model, batch, found)
    except Exception as error:
        if len(batch) > 1:
            half = len(batch) // 2
            return _worked_out(model, batch[:half]) + _worked_out(model, batch[half:])
        return [reason(error, model.name)]


def _shared(model: Model, batch: list[_Entry], found: Prediction) -> list[Answers | Exception]:
    wanted = {name for entry in batch for name in entry.names}
    values = {name: (model.spec(name).take(found), lengths_of(found, name)) for name in wanted}
    answers: list[Answers | Exception] = []
    start = 0
    for entry in batch:
        answers.append(Answers(values, start, start + entry.rows))
        start += entry.rows
    return answers


def joined(requests: Sequence[Sequence[Rows]]) -> list[Rows]:
    """The columns of several requests, one after another.

    >>> joined([[np.array([1.0])], [np.array([2.0, 3.0])]])
    [array([1., 2., 3.])]
    """
    if len(requests) == 1:
        return list(requests[0])
    return [_joined_column(parts) for parts in zip(*requests, strict=True)]


def _joined_column(parts: Sequence[Any]) -> Rows:
    if not isinstance(parts[0], RaggedArray):
        return np.concatenate(parts)
    values = np.concatenate([part.values for part in parts])
    return replace(parts[0], values=values, sizes=np.concatenate([part.sizes for part in parts]))
