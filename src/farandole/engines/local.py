"""Workers as processes of this machine: no JVM, no cluster."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import cloudpickle

from farandole.engines.base import MessageHandler, Task
from farandole.engines.channel import Inbox
from farandole.engines.failure import Failure, first_cause
from farandole.engines.interrupt import Interrupts
from farandole.engines.process import Finished, ProcessJob, send
from farandole.engines.rendezvous import LOOPBACK, listen
from farandole.errors import InputError

_ECHO_SECONDS = 1.0
"""How long to wait, after one worker failed, for a peer that failed before it."""


class LocalEngine:
    """Runs each worker as a process of its own, on this machine.

    `threads` is what torch gets in every worker; by default the cores are shared out, since
    two processes with two threads each on two cores are many times slower than with one.
    """

    name = "local"

    def __init__(self, *, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads must be a positive integer. Received: threads={threads}")
        self.threads = threads

    def slots(self) -> int:
        """Processes can outnumber cores (slowly), so there is no hard limit."""
        return 1024

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
        arrivals: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

        def sort(rank: int, message: object) -> None:
            if isinstance(message, Finished | Failure):
                arrivals.put((rank, message))
            else:
                on_message(rank, message)

        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            inbox = stack.enter_context(Inbox(LOOPBACK, sort))
            processes = self._start(task, num_workers, inbox, timeout)
            stack.callback(_end, processes)
            watch = _Watch(processes, arrivals, inbox, interrupts, task.stoppable)
            return watch.results()

    def _start(
        self, task: Task, size: int, inbox: Inbox, timeout: float
    ) -> list[subprocess.Popen[bytes]]:
        threads = self.threads or max(1, (os.cpu_count() or 1) // size)
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        blob = cloudpickle.dumps(task)
        processes: list[subprocess.Popen[bytes]] = []
        with listen(LOOPBACK) as listener:
            for rank in range(size):
                fd = listener.fileno() if rank == 0 else None
                process = subprocess.Popen(
                    [sys.executable, "-m", "farandole.engines.process"],
                    stdin=subprocess.PIPE,
                    pass_fds=[] if fd is None else [fd],
                    env=environment,
                    start_new_session=True,  # Ctrl-C is ours to pass on
                )
                processes.append(process)
                assert process.stdin is not None
                port = listener.getsockname()[1]
                job = ProcessJob(rank, size, inbox.address, port, fd, threads, timeout, blob)
                threading.Thread(target=_feed, args=(job, process), daemon=True).start()
        return processes


class _Watch:
    """Waits for the results of processes that may fail, die or be interrupted."""

    def __init__(
        self,
        processes: list[subprocess.Popen[bytes]],
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
            self._results[rank] = pickle.loads(message.payload)
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

    def _notice_deaths(self) -> None:
        known = set(self._results) | {failure.rank for failure in self._failures}
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is None or rank in known:
                continue
            self._receive(_ECHO_SECONDS)  # its last word may still be on the way
            if rank not in self._results and rank not in {f.rank for f in self._failures}:
                self._fail(Failure(rank, _epitaph(code), "", None, lost_peer=False))


def _epitaph(code: int) -> str:
    if code == -9:
        return "the process was killed (signal 9), most often for lack of memory"
    return f"the process died without a word (exit code {code})"


def _feed(job: ProcessJob, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        send(job, process.stdin)
    except OSError:
        return  # it died at birth: noticed by its exit code


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            try:
                process.wait(0.5 if process.stdin and process.stdin.closed else 0.05)
            except subprocess.TimeoutExpired:
                process.kill()
    for process in processes:
        process.wait(10)
        if process.stdin is not None:
            process.stdin.close()
