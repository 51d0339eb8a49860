"""The process of one local worker, forked or a fresh interpreter, which reads its spec from stdin.

Functions arrive by value (cloudpickle), so a caller's script needs no `__main__` guard
and is not run again here.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from farandole.engines.driver_link import Address, DriverLink
from farandole.engines.failure import Failure
from farandole.engines.fork_client import ForkServer, NoAnswer, kill_server
from farandole.engines.fork_server import apply_driver_settings
from farandole.engines.heartbeat import Heartbeat, HeartbeatAddress
from farandole.engines.serialization import PickledTask, WorkerResult

# Modules are looked for where the driver finds them, the folder of its script included.
_COMMAND = (
    "import sys; fd, *path = sys.argv[1:]; sys.path[:] = path; del sys.argv[1:]\n"
    "from farandole.engines.local_worker import main; main(int(fd) if fd else None)"
)


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """All that a local worker is told."""

    rank: int
    size: int
    driver: Address
    heartbeat: HeartbeatAddress
    store_port: int
    environ: Mapping[str, str] = field(repr=False)
    path: Sequence[str]
    """sys.path of the driver."""
    threads: int
    timeout: float
    join_timeout: float
    task: PickledTask


class WorkerProcess(Protocol):
    """A worker's process, as the driver sees it: a `subprocess.Popen`, or like one."""

    pid: int
    stdin: Any

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        ...

    def wait(self, timeout: float) -> int:
        """Wait for its end, and give the exit code; `subprocess.TimeoutExpired` if it runs on."""
        ...


def start_worker(
    listener: int | None, environ: Mapping[str, str], server: ForkServer | None
) -> WorkerProcess:
    """A worker that waits for its spec; rank 0's inherits the socket of the store, `listener`.

    It is forked by the server, or a fresh interpreter where there is none, or none that answers.
    """
    if server is not None:
        try:
            return server.fork(listener)
        except NoAnswer:
            kill_server(server)
        except OSError:  # it can't fork; or a stream or the current folder of this process is gone
            pass
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            _COMMAND,
            "" if listener is None else str(listener),
            *sys.path,
        ],
        stdin=subprocess.PIPE,
        pass_fds=[] if listener is None else [listener],
        env=environ,
        start_new_session=True,  # Ctrl-C is the driver's to pass on
    )


def send_spec(spec: WorkerSpec, stdin: IO[bytes]) -> None:
    """The driver's side of `_receive_spec`."""
    data = pickle.dumps(spec)
    stdin.write(len(data).to_bytes(8, "big") + data)
    stdin.flush()


def main(listener: int | None, *, forked: bool = False) -> None:
    """Read the spec, do the task, report its result or the failure."""
    stdin = open(0, "rb", closefd=False)  # noqa: SIM115 (open to the end)
    spec = _receive_spec(stdin)
    _exit_with_driver(stdin)
    if forked:
        apply_driver_settings(spec.environ, spec.path, spec.threads)
    # Before the first beat: to load a library holds the interpreter lock for as long as it takes.
    importlib.import_module("farandole.engines.worker")
    link = DriverLink(spec.rank, spec.driver, timeout=spec.join_timeout)  # it carries the result
    with Heartbeat(spec.rank, spec.heartbeat, ends_with_driver=True):
        message = _run(spec, listener, link)
        link.tell(message)
        link.close(timeout=spec.join_timeout)
    # Skips torch's exit handlers, which can wait for a peer that has already gone.
    os._exit(0 if isinstance(message, WorkerResult) else 1)


def _run(spec: WorkerSpec, listener_fd: int | None, link: DriverLink) -> WorkerResult | Failure:
    import torch

    from farandole.engines.rendezvous import LoopbackRendezvous
    from farandole.engines.worker import WorkerContext, WorkerFailure, run_task

    torch.set_num_threads(spec.threads)
    listener = None if listener_fd is None else socket.socket(fileno=listener_fd)
    rendezvous = LoopbackRendezvous(spec.size, lambda: spec.store_port, listener, spec.join_timeout)
    context = WorkerContext(
        rank=spec.rank,
        size=spec.size,
        rendezvous=rendezvous,
        link=link,
        timeout=spec.timeout,
        join_timeout=spec.join_timeout,
        credentials=spec.driver.credentials,
    )
    try:
        return WorkerResult(run_task(spec.task, iter(()), context))
    except WorkerFailure as error:
        return error.failure


def _receive_spec(stdin: IO[bytes]) -> WorkerSpec:
    size = int.from_bytes(stdin.read(8), "big")
    data = stdin.read(size)
    if not data:  # the driver left before it had said what to do
        os._exit(1)
    spec: Any = pickle.loads(data)
    assert isinstance(spec, WorkerSpec)
    return spec


def _exit_with_driver(stdin: IO[bytes]) -> None:
    """End this process when the driver's end of the pipe closes: no orphans."""

    def watch() -> None:
        stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
