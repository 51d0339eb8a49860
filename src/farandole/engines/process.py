"""The process of one local worker, forked or a fresh interpreter, fed through stdin.

Functions arrive by value (cloudpickle), so a caller's script needs no `__main__` guard
and is not run again here.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

from farandole.engines import fork_client
from farandole.engines.channel import Address, Outbox
from farandole.engines.failure import Failure
from farandole.engines.fork_client import ForkServer
from farandole.engines.fork_server import adopt
from farandole.engines.parcel import Parcel

# Modules are looked for where the driver finds them, the folder of its script included.
_COMMAND = (
    "import sys; fd, *path = sys.argv[1:]; sys.path[:] = path; del sys.argv[1:]\n"
    "from farandole.engines.process import main; main(int(fd) if fd else None)"
)


@dataclass(frozen=True)
class ProcessJob:
    """All that a local worker is told."""

    rank: int
    size: int
    inbox: Address
    store_port: int
    environ: Mapping[str, str]
    path: Sequence[str]
    threads: int
    timeout: float
    parcel: Parcel


@dataclass(frozen=True)
class Finished:
    """A worker's result, pickled."""

    payload: bytes


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


def start(
    listener: int | None, environ: Mapping[str, str], server: ForkServer | None
) -> WorkerProcess:
    """A worker that waits for its job; rank 0's inherits the socket of the store, `listener`.

    It is forked by the server, or a fresh interpreter where there is none, or none that answers.
    """
    if server is not None:
        try:
            return server.fork(listener)
        except OSError:
            fork_client.drop(server)
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


def main(listener: int | None, *, forked: bool = False) -> None:
    """Read the job, do it, report the result or the failure."""
    stream = open(0, "rb", closefd=False)  # noqa: SIM115 (open to the end)
    job = _receive(stream)
    _leave_with(stream)
    if forked:
        adopt(job.environ, job.path, job.threads)
    outbox = Outbox(job.rank, job.inbox)
    message = work(job, listener, outbox)
    outbox.tell(message)
    outbox.close(patience=job.timeout)
    # Skips torch's exit handlers, which can wait for a peer that has already gone.
    os._exit(0 if isinstance(message, Finished) else 1)


def work(job: ProcessJob, listener_fd: int | None, outbox: Outbox) -> Finished | Failure:
    """Do the job and describe how it ended."""
    import torch

    from farandole.engines.output import output_to
    from farandole.engines.rendezvous import OneHost
    from farandole.engines.worker import WorkerFailure, perform

    torch.set_num_threads(job.threads)
    listener = None if listener_fd is None else socket.socket(fileno=listener_fd)
    meeting = OneHost(job.rank, job.size, lambda: job.store_port, listener, job.timeout)
    try:
        with output_to(outbox):
            return Finished(
                perform(job.parcel, job.rank, job.size, iter(()), meeting, outbox, job.timeout)
            )
    except WorkerFailure as error:
        return error.failure


def send(job: ProcessJob, stream: IO[bytes]) -> None:
    """The driver's side of `_receive`."""
    data = pickle.dumps(job)
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> ProcessJob:
    size = int.from_bytes(stream.read(8), "big")
    data = stream.read(size)
    if not data:  # the driver left before it had said what to do
        os._exit(1)
    job: Any = pickle.loads(data)
    assert isinstance(job, ProcessJob)
    return job


def _leave_with(stream: IO[bytes]) -> None:
    """End this process when the driver's end of the pipe closes: no orphans."""

    def watch() -> None:
        stream.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
