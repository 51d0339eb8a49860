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
from farandole.engines.authenticated_listener import listen
from farandole.engines.base import DEFAULT_HEARTBEAT, MessageHandler, Task
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.failure import Failure
from farandole.engines.fork_client import ForkServer
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.heartbeat_sender import oom_kills
from farandole.engines.interrupt import Interrupts
from farandole.engines.local_worker import (
    WorkerProcess,
    WorkerResult,
    WorkerSpec,
    send_spec,
    start_worker,
)
from farandole.engines.process_exit import describe_exit
from farandole.engines.rendezvous import LOOPBACK
from farandole.engines.serialization import PickledTask, load_result
from farandole.engines.verdict import verdict
from farandole.engines.worker import Joined
from farandole.errors import WorkerLost
from farandole.system_resources import usable_cores
from farandole.world import LONGEST_WAIT

_CAUSE_SECONDS = 1.0
"""After a worker lost a peer: how long to wait for that peer to say what had happened."""
_DEATH_SECONDS = 0.2
"""How long the exit code of a worker that has died may take to be here."""
_RESULT_SECONDS = 10.0
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
        heartbeat: float = DEFAULT_HEARTBEAT,
        join_timeout: float = LONGEST_WAIT,
        on_message: MessageHandler,
    ) -> list[Any]:
        """Start the processes, wait for all results, leave nothing behind."""
        assert rows is None, "local workers read their own rows"
        pickled = PickledTask(task)
        # Before Ctrl-C is counted: it may take seconds, and there is nothing yet to end in order.
        server = fork_client.ready_server() if self.fork_server else None
        reports: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

        def dispatch(rank: int, message: object) -> Any:
            if isinstance(message, WorkerResult | Failure | Joined):
                reports.put((rank, message))
                return None
            return on_message(rank, message)

        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            endpoint = stack.enter_context(DriverEndpoint(LOOPBACK, dispatch, encrypt=task.encrypt))
            monitor = stack.enter_context(HeartbeatMonitor(LOOPBACK, heartbeat))
            processes: list[WorkerProcess] = []
            stack.callback(_end, processes)
            collector = _Collector(
                processes, reports, endpoint, monitor, interrupts, task.stoppable, timeout
            )
            common = {
                "size": num_workers,
                "driver": endpoint.address,
                "heartbeat": monitor.address,
                "timeout": timeout,
                "join_timeout": join_timeout,
                "task": pickled,
            }
            self._start(processes, server, common, task.cpus)
            return collector.results()

    def _start(
        self,
        processes: list[WorkerProcess],
        server: ForkServer | None,
        common: dict[str, Any],
        cpus: int | None,
    ) -> None:
        """Add a process for each rank to `processes`; `common` is what all specs have."""
        size = common["size"]
        threads = self.threads or cpus or max(1, usable_cores() // size)
        environ = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with listen(LOOPBACK) as listener:
            for rank in range(size):
                process = start_worker(listener.fileno() if rank == 0 else None, environ, server)
                processes.append(process)
                spec = WorkerSpec(
                    **common,
                    rank=rank,
                    store_port=listener.getsockname()[1],
                    environ=environ,
                    path=tuple(sys.path),
                    threads=threads,
                )
                threading.Thread(target=_send, args=(spec, process), daemon=True).start()


class _Collector:
    """Waits for the results of processes that may fail, die or be interrupted."""

    def __init__(
        self,
        processes: list[WorkerProcess],
        reports: queue.SimpleQueue[tuple[int, object]],
        endpoint: DriverEndpoint,
        monitor: HeartbeatMonitor,
        interrupts: Interrupts,
        stoppable: bool,
        timeout: float,
    ) -> None:
        self._processes = processes
        self._reports = reports
        self._endpoint = endpoint
        self._monitor = monitor
        self._interrupts = interrupts
        self._stoppable = stoppable
        self._timeout = timeout
        self._oom_kills = oom_kills()
        self._joined: set[int] = set()
        self._results: dict[int, Any] = {}
        self._failures: list[Failure] = []
        self._lost: WorkerLost | None = None
        self._deadline: float | None = None

    def results(self) -> list[Any]:
        size = len(self._processes)
        while len(self._results) < size:
            self._receive(0.1)
            if self._endpoint.error is not None:
                raise self._endpoint.error
            self._handle_interrupts()
            self._check_exit_codes()
            self._check_heartbeats()
            if self._deadline is not None and time.monotonic() > self._deadline:
                error = verdict(
                    self._failures,
                    self._lost,
                    finished=self._results,
                    size=size,
                    timeout=self._timeout,
                )
                assert error is not None, "there is a deadline only after a failure"
                raise error
        return [self._results[rank] for rank in range(size)]

    def _receive(self, seconds: float) -> None:
        try:
            rank, message = self._reports.get(timeout=seconds)
        except queue.Empty:
            return
        if isinstance(message, WorkerResult):
            self._results[rank] = load_result(rank, message.payload)
        elif isinstance(message, Failure):
            self._failures.append(message)
            self._give_up_in(_CAUSE_SECONDS if message.lost_peer else 0.0)
        elif isinstance(message, Joined):
            self._joined.add(rank)

    def _give_up_in(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._deadline = min(self._deadline or deadline, deadline)

    def _lose(self, rank: int, why: str) -> None:
        self._lost = self._lost or WorkerLost(rank, why)
        self._give_up_in(0.0)

    def _handle_interrupts(self) -> None:
        """Ask for an orderly end, where there is something to end in order: the ring is up."""
        if self._interrupts.count == 0:
            return
        while not self._reports.empty():  # that all are up may be known already
            self._receive(0.0)
        is_up = len(self._joined) == len(self._processes)
        if not (self._stoppable and is_up) or self._interrupts.count > 1:
            raise self._interrupts.error()
        self._endpoint.request_stop()

    def _has_reported(self, rank: int) -> bool:
        return rank in self._results or any(rank == failure.rank for failure in self._failures)

    def _check_exit_codes(self) -> None:
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is None or self._has_reported(rank):
                continue
            # Its report may still be on the way, and surely is when it ended well.
            deadline = time.monotonic() + (_RESULT_SECONDS if code == 0 else _CAUSE_SECONDS)
            while not self._has_reported(rank) and time.monotonic() < deadline:
                self._receive(0.1)
            if not self._has_reported(rank):
                how = describe_exit(code, out_of_memory=oom_kills() > self._oom_kills)
                self._lose(rank, how + self._monitor.crashes.get(rank, ""))

    def _check_heartbeats(self) -> None:
        lost = self._monitor.lost
        if lost is None or lost.rank is None or self._has_reported(lost.rank):
            return
        try:
            self._processes[lost.rank].wait(_DEATH_SECONDS)  # then its exit code tells more
        except subprocess.TimeoutExpired:
            self._lose(lost.rank, lost.summary)


def _send(spec: WorkerSpec, process: WorkerProcess) -> None:
    try:
        send_spec(spec, process.stdin)
    except OSError:
        return  # it died at once: seen by its exit code


def _end(processes: list[WorkerProcess]) -> None:
    """Nothing stays: neither the workers nor what they started."""
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(OSError):  # a spec that was never read to its end
            process.stdin.close()
