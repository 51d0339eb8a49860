"""The line between workers and driver: events and output go up, a request to stop goes down.

On Spark it carries nothing that the result needs, so a driver that can't be reached costs the
live progress and no more.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)

import cloudpickle

from farandole.engines.base import MessageHandler

STOP, ABORT = b"stop", b"abort"
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
        self._visitors: list[Connection] = []
        self._lines: list[Connection] = []
        self._stopping = False
        self._closed = False
        self._secret = secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=1024)
        self._place = str(self._listener.address[0]), int(self._listener.address[1])
        self.address = Address(*self._place, self._secret)
        self.error: BaseException | None = None
        """What the handler raised first. The workers know nothing of it: the engine ends them."""
        self._door = threading.Thread(target=self._accept, daemon=True)
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Inbox:
        self._door.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._closed = True
        if kind is not None:
            self._send(ABORT)
        self._wake()
        self._door.join(5)
        self._listener.close()
        for reader in self._readers:  # workers have hung up: read what is left
            reader.join(2 if kind is None else 0.2)
        for visitor in self._visitors:
            _hang_up(visitor)
        for reader in self._readers:
            reader.join(2)

    @property
    def connected(self) -> int:
        """How many workers have reached the driver."""
        return len(self._lines)

    def request_stop(self) -> None:
        """Ask every worker, present and future, for an orderly end."""
        self._stopping = True
        self._send(STOP)

    def _send(self, data: bytes) -> None:
        with self._lock:
            for line in self._lines:
                _sent(line, data)

    def _wake(self) -> None:
        """accept() notices a closed listener only when somebody knocks."""
        with suppress(OSError):
            socket.create_connection(self._place, 2).close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                visitor = self._listener.accept()
            except OSError:
                continue
            self._visitors.append(visitor)
            reader = threading.Thread(target=self._read, args=(visitor,), daemon=True)
            self._readers.append(reader)
            reader.start()

    def _admitted(self, visitor: Connection) -> bool:
        """Whether the visitor knows the secret. A stranger who keeps silent holds nobody up."""
        try:
            deliver_challenge(visitor, self._secret)
            answer_challenge(visitor, self._secret)
        except Exception:
            _hang_up(visitor)
            return False
        with self._lock:
            self._lines.append(visitor)
            if self._stopping:
                _sent(visitor, STOP)
        return True

    def _read(self, line: Connection) -> None:
        if not self._admitted(line):
            return
        while True:
            try:
                rank, message = pickle.loads(line.recv_bytes())
            except (EOFError, OSError):
                return
            except Exception:  # a message of a class that this side doesn't know
                continue
            with self._handling:  # handlers draw on the terminal: one at a time
                try:
                    self._handler(rank, message)
                except BaseException as error:
                    self.error = self.error or error


def _leave() -> None:
    """End this process at once, whatever it does: its peers have failed, or nobody waits."""
    os._exit(1)


class Outbox:
    """A worker's end. `tell` only queues: a thread of its own connects and sends.

    When the driver gives up, `leave` is called from a thread, by default to end the process: it may
    be asleep, or wait in a collective, and Spark alone would let it go on for some seconds.
    """

    def __init__(
        self,
        rank: int,
        address: Address | None,
        *,
        patience: float = 10.0,
        leave: Callable[[], None] = _leave,
    ) -> None:
        self._rank = rank
        self._leave = leave
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._closed = False
        self._thread = threading.Thread(
            target=self._send_all, args=(address, patience), daemon=True
        )
        self._thread.start()

    def tell(self, message: object) -> None:
        """Queue a message for the driver; once closed, drop it."""
        if not self._closed:
            self._queue.put(message)

    def flush(self, patience: float = 10.0) -> None:
        """Wait until all that was told is sent: the next thing to do may end this process."""
        sent = threading.Event()
        self.tell(sent)
        if not self._closed:
            sent.wait(patience)

    def stop_requested(self) -> bool:
        """Whether the driver asked for an orderly end."""
        return self._stop.is_set()

    def close(self, patience: float = 5.0) -> None:
        """Send what is queued, then hang up."""
        self._closed = True
        self._queue.put(_END)
        self._thread.join(patience)

    def _send_all(self, address: Address | None, patience: float) -> None:
        line = open_line = _connect(address, patience) if address else None
        listening = threading.Thread(target=self._listen, args=(open_line,), daemon=True)
        listening.start()
        while (message := self._queue.get()) is not _END:
            if isinstance(message, threading.Event):
                message.set()
                continue
            if line is not None and not _sent(line, _packed(self._rank, message)):
                line = None
            if line is None:
                _print_here(self._rank, message)
        if open_line is not None:
            _hang_up(open_line)
        listening.join()

    def _listen(self, line: Connection | None) -> None:
        try:
            while line is not None:
                if line.recv_bytes() == ABORT:
                    self._leave()
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


def _packed(rank: int, message: object) -> bytes | None:
    try:
        return bytes(cloudpickle.dumps((rank, message)))
    except Exception:  # telling never fails: what can't travel is dropped
        return None


def _sent(line: Connection, data: bytes | None) -> bool:
    try:
        if data is not None:
            line.send_bytes(data)
    except (OSError, ValueError, EOFError):  # the other end has gone
        return False
    return True
