"""The line between workers and driver: events and output go up, a request to stop goes down.

It carries nothing that the result needs, so a driver that can't be reached costs the
live progress and no more.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener

from farandole.engines.base import MessageHandler

STOP = "stop"
_END = object()


@dataclass(frozen=True)
class Output:
    """A line that a worker printed."""

    stream: str
    text: str


@dataclass(frozen=True)
class Address:
    """Where the driver listens, and the secret that opens the line."""

    host: str
    port: int
    secret: bytes


class Inbox:
    """The driver's end. Use as a context manager; messages arrive on its own threads."""

    def __init__(self, host: str, handler: MessageHandler) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self._handling = threading.Lock()
        self._lines: list[Connection] = []
        self._stopping = False
        self._closed = False
        secret = secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=64, authkey=secret)
        bound_host, port = self._listener.address[:2]
        self.address = Address(str(bound_host), int(port), secret)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Inbox:
        self._threads[0].start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._closed = True
        self._wake()
        self._threads[0].join(5)
        for thread in self._threads[1:]:  # workers have hung up: read what is left
            thread.join(2 if kind is None else 0.2)
        self._listener.close()
        with self._lock:
            for line in self._lines:
                _hang_up(line)

    @property
    def connected(self) -> int:
        """How many workers have reached the driver."""
        return len(self._lines)

    def request_stop(self) -> None:
        """Ask every worker, present and future, for an orderly end."""
        with self._lock:
            self._stopping = True
            for line in self._lines:
                _sent(line, STOP)

    def _wake(self) -> None:
        """accept() notices a closed listener only when somebody knocks."""
        with suppress(OSError):
            socket.create_connection((self.address.host, self.address.port), 2).close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                line = self._listener.accept()
            except Exception:  # a stranger without the secret, or our own knock at the end
                continue
            with self._lock:
                self._lines.append(line)
                if self._stopping:
                    _sent(line, STOP)
            thread = threading.Thread(target=self._read, args=(line,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, line: Connection) -> None:
        while True:
            try:
                rank, message = line.recv()
            except (EOFError, OSError):
                return
            with self._handling:  # handlers draw on the terminal: one at a time
                self._handler(rank, message)


class Outbox:
    """A worker's end. `tell` only queues: a thread of its own connects and sends."""

    def __init__(self, rank: int, address: Address | None, *, patience: float = 10.0) -> None:
        self._rank = rank
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._send_all, args=(address, patience), daemon=True
        )
        self._thread.start()

    def tell(self, message: object) -> None:
        """Queue a message for the driver."""
        self._queue.put(message)

    def stop_requested(self) -> bool:
        """Whether the driver asked for an orderly end."""
        return self._stop.is_set()

    def close(self, patience: float = 5.0) -> None:
        """Send what is queued, then hang up."""
        self._queue.put(_END)
        self._thread.join(patience)

    def _send_all(self, address: Address | None, patience: float) -> None:
        line = _connect(address, patience) if address else None
        if line is not None:
            threading.Thread(target=self._listen, args=(line,), daemon=True).start()
        while (message := self._queue.get()) is not _END:
            if line is not None and not _sent(line, (self._rank, message)):
                line = None
            if line is None:
                _print_here(self._rank, message)
        if line is not None:
            _hang_up(line)

    def _listen(self, line: Connection) -> None:
        try:
            while line.recv() == STOP:
                self._stop.set()
        except (EOFError, OSError, TypeError):  # TypeError: closed by the sending thread meanwhile
            return


def _connect(address: Address, patience: float) -> Connection | None:
    """Connect within `patience` seconds: a firewall that drops packets must not hold us up."""
    try:
        socket.create_connection((address.host, address.port), patience).close()
        return Client((address.host, address.port), authkey=address.secret)
    except Exception:  # unreachable, refused or gone: training goes on without it
        return None


def _hang_up(line: Connection) -> None:
    """Close a line that another thread may be reading: a mere close() would leave it waiting."""
    with suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
    line.close()


def _print_here(rank: int, message: object) -> None:
    if isinstance(message, Output) and sys.__stderr__ is not None:
        sys.__stderr__.write(f"[rank {rank}] {message.text}\n")


def _sent(line: Connection, message: object) -> bool:
    try:
        line.send(message)
    except (OSError, ValueError, EOFError):  # the other end has gone
        return False
    return True
