"""The process of one local worker, fed through stdin.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from farandole.engines.channel import Address, Outbox
from farandole.engines.failure import Failure
from farandole.engines.parcel import Parcel

# Modules are looked for where the driver finds them, the folder of its script included.
_COMMAND = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]\n"
    "from farandole.engines.process import main; main()"
)


@dataclass(frozen=True)
class ProcessJob:
    """All that a local worker is told."""

    rank: int
    size: int
    inbox: Address
    store_port: int
    listener: int | None
    """The file descriptor of the store's socket: rank 0 inherits it."""
    threads: int
    timeout: float
    parcel: Parcel


@dataclass(frozen=True)
class Finished:
    """A worker's result, pickled."""

    payload: bytes


def start(listener: int | None, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A worker that waits for its job."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _COMMAND, *sys.path],
        stdin=subprocess.PIPE,
        pass_fds=[] if listener is None else [listener],
        env=environment,
        start_new_session=True,  # Ctrl-C is the driver's to pass on
    )


def main() -> None:
    """Read the job, do it, report the result or the failure."""
    job = _receive(sys.stdin.buffer)
    _leave_with(sys.stdin.buffer)
    outbox = Outbox(job.rank, job.inbox)
    message = work(job, outbox)
    outbox.tell(message)
    outbox.close(patience=job.timeout)
    # Skips torch's exit handlers, which can wait for a peer that has already gone.
    os._exit(0 if isinstance(message, Finished) else 1)


def work(job: ProcessJob, outbox: Outbox) -> Finished | Failure:
    """Do the job and describe how it ended."""
    import torch

    from farandole.engines.output import output_to
    from farandole.engines.rendezvous import OneHost
    from farandole.engines.worker import WorkerFailure, perform

    torch.set_num_threads(job.threads)
    listener = None if job.listener is None else socket.socket(fileno=job.listener)
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
