"""Slots: places where trials run side by side. One that is free takes the next trial at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from farandole.engines import Engine, Interrupts, Task
from farandole.errors import (
    InputError,
    JobCancelled,
    NotEnoughSlots,
    WorkerFailed,
    WorkerLost,
)
from farandole.tuning.search import Search
from farandole.tuning.slot_worker import failed, is_pruned, pruned
from farandole.tuning.trial_run import (
    INTERRUPTED,
    NextRun,
    Report,
    RunResult,
    TrainedNetwork,
    TrialRun,
    Wait,
)

_MOST_LAUNCHES = 3
"""How often a slot is launched in a row without finishing a run."""
_BACK_OFF_SECONDS = 1.0
_POLL_SECONDS = 0.05


class Slot(Protocol):
    """A place where one trial runs at a time."""

    def serve(self) -> None:
        """Run trials until there is nothing left to run."""


def run_slots(search: Search, slots: Sequence[Slot]) -> None:
    """Let all slots serve, each in a thread of its own, until the search is over.

    Ctrl-C lets running trials end at their next report; a second one doesn't wait for them.
    """
    ended: list[BaseException] = []

    def guarded(slot: Slot) -> None:
        try:
            slot.serve()
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=guarded, args=(slot,), daemon=True) for slot in slots]
    with Interrupts() as interrupts:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(_POLL_SECONDS)
            if interrupts.count:
                search.stop(INTERRUPTED)
            if interrupts.count > 1:
                search.fail(interrupts.error())
                raise interrupts.error()
    if search.error is None and ended and search.has_work:  # and no place to do it
        search.fail(ended[0])
    search.close()
    if search.error is not None:
        raise search.error


class WorkerSlot:
    """A worker of an engine that runs one trial after the other; a dead one is replaced."""

    def __init__(
        self,
        search: Search,
        engine: Engine,
        task: Task,
        *,
        timeout: float,
        heartbeat: float,
        print_output: Callable[[int, object], None],
    ) -> None:
        self._search = search
        self._engine = engine
        self._task = task
        self._limits: Any = {"timeout": timeout, "heartbeat": heartbeat}
        self._print_output = print_output
        self._running: TrialRun | None = None
        self._launches = 0

    def serve(self) -> None:
        """Launch the worker, again if need be, until there is nothing left to run."""
        while True:
            self._launches += 1
            try:
                self._engine.run(self._task, 1, on_message=self._answer, **self._limits)
                return
            except (InputError, NotEnoughSlots, JobCancelled) as error:
                self._search.fail(error)
                return
            except Exception as error:
                if self._search.error is not None:
                    return
                self._lose(error.summary if isinstance(error, WorkerFailed) else str(error))
                if self._launches >= _MOST_LAUNCHES:
                    raise
            time.sleep(_BACK_OFF_SECONDS * max(0, self._launches - 1))

    def _lose(self, why: str) -> None:
        run, self._running = self._running, None
        if run is not None:
            self._search.lose(run, why.partition("\n")[0])

    def _answer(self, rank: int, message: object) -> Any:
        """What the worker is told; an error of our own, such as of a database, ends the study."""
        try:
            return self._answer_of(rank, message)
        except Exception as error:
            self._search.fail(error)
            raise

    def _answer_of(self, rank: int, message: object) -> Any:
        search = self._search
        match message:
            case NextRun():
                self._launches = 0  # only those that never come to ask are counted
                self._lose("its worker asked for another")
                found = search.next_run()
                self._running = found if isinstance(found, TrialRun) else None
                return found
            case Report():
                return search.report(message)
            case RunResult():
                wanted = search.finish(message)
                self._running = self._running if wanted else None
                return wanted
            case TrainedNetwork():
                self._running = None
                search.keep(message.number, message.result)
            case _:
                self._print_output(rank, message)
        return None


class CallSlot:
    """A thread of the driver that calls a function for each run, which may use many workers."""

    def __init__(self, search: Search, call: Callable[[TrialRun, Any], Any]) -> None:
        self._search = search
        self._call = call

    def serve(self) -> None:
        """Call until there is nothing left to run."""
        try:
            while (run := self._search.next_run()) is not None:
                if isinstance(run, Wait):
                    time.sleep(_POLL_SECONDS)
                    continue
                self._run(run)
        except Exception as error:  # of a database, for instance: no slot can go on
            self._search.fail(error)

    def _run(self, run: TrialRun) -> None:
        start = time.perf_counter()
        try:
            output = self._call(run, DirectLink(self._search))
        except JobCancelled as error:
            self._search.fail(error)
        except WorkerLost as error:
            self._search.lose(run, error.summary)
        except Exception as error:
            seconds = time.perf_counter() - start
            if is_pruned(error):
                self._search.finish(pruned(run, error, seconds))
            else:
                self._search.finish(failed(run, error, seconds))
        else:
            seconds = time.perf_counter() - start
            values, rows = dict(output.values), output.row_epochs
            result = RunResult(run=run, values=values, seconds=seconds, row_epochs=rows)
            if self._search.finish(result):
                self._search.keep(run.number, output.result)


class DirectLink:
    """What a run on the driver asks: the search itself."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def ask(self, message: Report) -> bool:
        """Whether to stop."""
        return self._search.report(message)
