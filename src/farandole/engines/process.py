"""The process of one local worker: `python -m farandole.engines.process`, fed through stdin.

Functions arrive by value (cloudpickle), so a caller's script needs no `__main__` guard
and is not run again here.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from dataclasses import dataclass
from typing import IO, Any

import cloudpickle

from farandole.engines.base import Task
from farandole.engines.channel import Address, Outbox
from farandole.engines.failure import Failure


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
    task: bytes


@dataclass(frozen=True)
class Finished:
    """A worker's result, pickled."""

    payload: bytes


def main() -> None:
    """Read the job, do it, report the result or the failure."""
    _leave_with(sys.stdin.buffer, job := _receive(sys.stdin.buffer))
    outbox = Outbox(job.rank, job.inbox)
    message = work(job, outbox)
    outbox.tell(message)
    outbox.close(patience=job.timeout)
    # Skips torch's exit handlers, which can wait for a peer that has already gone.
    os._exit(0 if isinstance(message, Finished) else 1)


def work(job: ProcessJob, outbox: Outbox) -> Finished | Failure:
    """Do the job and describe how it ended."""
    try:
        import torch

        from farandole.engines.rendezvous import LOOPBACK, open_store
        from farandole.engines.worker import WorkerFailure, output_to, perform

        torch.set_num_threads(job.threads)
        listener = None if job.listener is None else socket.socket(fileno=job.listener)
        task: Task = pickle.loads(job.task)
    except Exception as error:  # most likely a module that can't be imported here
        return Failure.of(job.rank, error)
    try:
        with output_to(outbox):
            result = perform(
                task,
                job.rank,
                [LOOPBACK] * job.size,
                iter(()),
                lambda: open_store(
                    job.rank, job.size, LOOPBACK, job.store_port, listener, job.timeout
                ),
                outbox,
                job.timeout,
            )
            return Finished(cloudpickle.dumps(result))
    except WorkerFailure as error:
        return error.failure
    except Exception as error:  # a result that doesn't pickle
        return Failure.of(job.rank, error)


def send(job: ProcessJob, stream: IO[bytes]) -> None:
    """The driver's side of `_receive`."""
    data = pickle.dumps(job)
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> ProcessJob:
    size = int.from_bytes(stream.read(8), "big")
    job: Any = pickle.loads(stream.read(size))
    assert isinstance(job, ProcessJob)
    return job


def _leave_with(stream: IO[bytes], job: ProcessJob) -> None:
    """End this process when the driver's end of the pipe closes: no orphans."""

    def watch() -> None:
        stream.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    # Under `-m` this file runs as __main__; the job's classes live in the importable copy.
    from farandole.engines.process import main as run_worker

    run_worker()
