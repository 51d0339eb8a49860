"""Workers as processes of this machine: no JVM, no cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import Any

from farandole.arguments import check_integer
from farandole.engines import fork_client
from farandole.engines.authenticated_listener import listen
from farandole.engines.base import DEFAULT_HEARTBEAT, MessageHandler, Task
from farandole.engines.collector import Collector, Ending, Reports
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.fork_client import ForkServer
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.engines.heartbeat_sender import oom_kills
from farandole.engines.interrupt import Interrupts
from farandole.engines.local_worker import (
    WorkerProcess,
    WorkerSpec,
    send_spec,
    start_worker,
)
from farandole.engines.process_exit import describe_exit
from farandole.engines.rendezvous import LOOPBACK
from farandole.engines.serialization import PickledTask
from farandole.system_resources import usable_cores
from farandole.world import LONGEST_WAIT


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
        reports = Reports(on_message)
        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            endpoint = stack.enter_context(DriverEndpoint(LOOPBACK, reports, encrypt=task.encrypt))
            monitor = stack.enter_context(HeartbeatMonitor(LOOPBACK, heartbeat))
            processes: list[WorkerProcess] = []
            stack.callback(_end, processes)
            common = {
                "size": num_workers,
                "driver": endpoint.address,
                "heartbeat": monitor.address,
                "timeout": timeout,
                "join_timeout": join_timeout,
                "task": pickled,
            }
            self._start(processes, server, common, task.cpus)
            watched = [_Watched(rank, each, monitor) for rank, each in enumerate(processes)]
            collector = Collector(watched, reports, endpoint, monitor, interrupts, timeout)
            return collector.results(stoppable=task.stoppable)

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


class _Watched:
    """A process, as the collector of results sees it."""

    place = ""

    def __init__(self, rank: int, process: WorkerProcess, monitor: HeartbeatMonitor) -> None:
        self._rank = rank
        self._process = process
        self._monitor = monitor
        self._oom_kills = oom_kills()

    def ending(self) -> Ending | None:
        """What its exit code says; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        how = describe_exit(code, out_of_memory=oom_kills() > self._oom_kills)
        return Ending(code == 0, how + self._monitor.crashes.get(self._rank, ""))


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
