"""Workers as processes of this machine: no JVM, no cluster."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

from farandole.arguments import check_integer
from farandole.engines import fork_client
from farandole.engines.base import MessageHandler, Task
from farandole.engines.channel import Inbox
from farandole.engines.failure import Failure, first_cause
from farandole.engines.fork_client import ForkServer
from farandole.engines.interrupt import Interrupts
from farandole.engines.parcel import Parcel, unpack_result
from farandole.engines.process import Finished, ProcessJob, WorkerProcess, send, start
from farandole.engines.rendezvous import LOOPBACK, listen

_ECHO_SECONDS = 1.0
"""How long to wait, after one worker failed, for a peer that failed before it."""
_LAST_WORD_SECONDS = 10.0
"""How long a large result may take from a process that has ended to be here."""


class LocalEngine:
    """Runs each worker as a process of its own, on this machine.

    `threads` is what torch gets in every worker; by default the cores are shared out, since
    two processes with two threads each on two cores are many times slower than with one.
    `fork_server=False` starts every worker as a fresh interpreter, which loads torch anew.
    """

    name = "local"

    def __init__(self, *, threads: int | None = None, fork_server: bool = True) -> None:
        if threads is not None:
            check_integer("threads", threads)
        self.threads = threads
        self.fork_server = fork_server

    def run(
        self,
        task: Task,
        num_workers: int,
        *,
        rows: Any = None,
        timeout: float,
        on_message: MessageHandler,
    ) -> list[Any]:
        """Start the processes, wait for all results, leave nothing behind."""
        assert rows is None, "local workers read their own rows"
        parcel = Parcel(task)
        # Before Ctrl-C is counted: it may take seconds, and there is nothing yet to end in order.
        server = fork_client.ready_server() if self.fork_server else None
        arrivals: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

        def sort(rank: int, message: object) -> None:
            if isinstance(message, Finished | Failure):
                arrivals.put((rank, message))
            else:
                on_message(rank, message)

        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            inbox = stack.enter_context(Inbox(LOOPBACK, sort))
            processes: list[WorkerProcess] = []
            stack.callback(_end, processes)
            self._start(processes, server, parcel, num_workers, inbox, timeout)
            watch = _Watch(processes, arrivals, inbox, interrupts, task.stoppable)
            return watch.results()

    def _start(
        self,
        processes: list[WorkerProcess],
        server: ForkServer | None,
        parcel: Parcel,
        size: int,
        inbox: Inbox,
        timeout: float,
    ) -> None:
        """Add a process for each rank to `processes`."""
        threads = self.threads or max(1, (os.cpu_count() or 1) // size)
        environ = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with listen(LOOPBACK) as listener:
            port = listener.getsockname()[1]
            for rank in range(size):
                fd = listener.fileno() if rank == 0 else None
                process = start(fd, environ, server)
                processes.append(process)
                job = ProcessJob(
                    rank=rank,
                    size=size,
                    inbox=inbox.address,
                    store_port=port,
                    environ=environ,
                    path=tuple(sys.path),
                    threads=threads,
                    timeout=timeout,
                    parcel=parcel,
                )
                threading.Thread(target=_feed, args=(job, process), daemon=True).start()


class _Watch:
    """Waits for the results of processes that may fail, die or be interrupted."""

    def __init__(
        self,
        processes: list[WorkerProcess],
        arrivals: queue.SimpleQueue[tuple[int, object]],
        inbox: Inbox,
        interrupts: Interrupts,
        stoppable: bool,
    ) -> None:
        self._processes = processes
        self._arrivals = arrivals
        self._inbox = inbox
        self._interrupts = interrupts
        self._stoppable = stoppable
        self._results: dict[int, Any] = {}
        self._failures: list[Failure] = []
        self._deadline: float | None = None

    def results(self) -> list[Any]:
        size = len(self._processes)
        while len(self._results) < size:
            self._receive(0.1)
            if self._inbox.error is not None:
                raise self._inbox.error
            self._heed_interrupts()
            self._notice_deaths()
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise first_cause(self._failures).to_error()
        return [self._results[rank] for rank in range(size)]

    def _receive(self, seconds: float) -> None:
        try:
            rank, message = self._arrivals.get(timeout=seconds)
        except queue.Empty:
            return
        if isinstance(message, Finished):
            self._results[rank] = unpack_result(rank, message.payload)
        elif isinstance(message, Failure):
            self._fail(message)

    def _fail(self, failure: Failure) -> None:
        self._failures.append(failure)
        echo = time.monotonic() + (_ECHO_SECONDS if failure.lost_peer else 0.0)
        self._deadline = min(self._deadline or echo, echo)

    def _heed_interrupts(self) -> None:
        if self._interrupts.count == 0:
            return
        if not self._stoppable or self._interrupts.count > 1:
            raise KeyboardInterrupt
        self._inbox.request_stop()

    def _heard_of(self, rank: int) -> bool:
        return rank in self._results or any(rank == failure.rank for failure in self._failures)

    def _notice_deaths(self) -> None:
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is None or self._heard_of(rank):
                continue
            # Its last word may still be on the way, and surely is when it ended well.
            patience = time.monotonic() + (_LAST_WORD_SECONDS if code == 0 else _ECHO_SECONDS)
            while not self._heard_of(rank) and time.monotonic() < patience:
                self._receive(0.1)
            if not self._heard_of(rank):
                self._fail(Failure(rank, _epitaph(code), "", None, lost_peer=False))


def _epitaph(code: int) -> str:
    if code == -9:
        return "the process was killed (signal 9), most often for lack of memory"
    return f"the process died without a word (exit code {code})"


def _feed(job: ProcessJob, process: WorkerProcess) -> None:
    try:
        send(job, process.stdin)
    except OSError:
        return  # it died at birth: noticed by its exit code


def _end(processes: list[WorkerProcess]) -> None:
    """Nothing stays: neither the workers nor what they started."""
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait(10)
        with suppress(OSError):  # a job that was never read to its end
            process.stdin.close()
