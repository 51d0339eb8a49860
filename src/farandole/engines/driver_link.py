"""The link between workers and driver: events and output go up, a request to stop goes down.

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
from farandole.engines.output import Output

STOP, ABORT = b"stop", b"abort"
_END = object()


@dataclass(frozen=True)
class Address:
    """Where the driver listens, and the secret that a worker has to know."""

    host: str
    port: int
    secret: bytes


class DriverEndpoint:
    """The driver's end. Use as a context manager; messages arrive on its own threads."""

    def __init__(self, host: str, handler: MessageHandler) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self._handling = threading.Lock()
        self._accepted: list[Connection] = []
        self._authenticated: list[Connection] = []
        self._stopping = False
        self._closed = False
        self._secret = secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=1024)
        self._host_port = str(self._listener.address[0]), int(self._listener.address[1])
        self.address = Address(*self._host_port, self._secret)
        self.error: BaseException | None = None
        """What the handler raised first. The workers know nothing of it: the engine ends them."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> DriverEndpoint:
        self._accepting.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._closed = True
        if kind is not None:
            self._send(ABORT)
        self._wake_accept()
        self._accepting.join(5)
        self._listener.close()
        for reader in self._readers:  # workers have closed their ends: read what is left
            reader.join(2 if kind is None else 0.2)
        for connection in self._accepted:
            _close(connection)
        for reader in self._readers:
            reader.join(2)

    @property
    def connected(self) -> int:
        """How many workers have reached the driver."""
        return len(self._authenticated)

    def request_stop(self) -> None:
        """Ask every worker, present and future, for an orderly end."""
        self._stopping = True
        self._send(STOP)

    def _send(self, data: bytes) -> None:
        with self._lock:
            for connection in self._authenticated:
                _try_to_send(connection, data)

    def _wake_accept(self) -> None:
        """accept() notices a closed listener only when somebody connects."""
        with suppress(OSError):
            socket.create_connection(self._host_port, 2).close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:
                continue
            self._accepted.append(connection)
            reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._readers.append(reader)
            reader.start()

    def _authenticate(self, connection: Connection) -> bool:
        """Whether the other end knows the secret. One that keeps silent holds nobody up."""
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
        except Exception:
            _close(connection)
            return False
        with self._lock:
            self._authenticated.append(connection)
            if self._stopping:
                _try_to_send(connection, STOP)
        return True

    def _read(self, connection: Connection) -> None:
        if not self._authenticate(connection):
            return
        while True:
            try:
                rank, message = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            except Exception:  # a message of a class that this side doesn't know
                continue
            with self._handling:  # handlers draw on the terminal: one at a time
                try:
                    self._handler(rank, message)
                except BaseException as error:
                    self.error = self.error or error


def _exit() -> None:
    """End this process at once, whatever it does: its peers have failed, or nobody waits."""
    os._exit(1)


class DriverLink:
    """A worker's end. `tell` only queues: a thread of its own connects and sends.

    When the driver gives up, `on_abort` is called from a thread, by default to end the process: it
    may be asleep, or wait in a collective, and Spark alone would let it go on for some seconds.
    """

    def __init__(
        self,
        rank: int,
        address: Address | None,
        *,
        timeout: float = 10.0,
        on_abort: Callable[[], None] = _exit,
    ) -> None:
        self._rank = rank
        self._on_abort = on_abort
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._closed = False
        self._sending = threading.Thread(
            target=self._send_all, args=(address, timeout), daemon=True
        )
        self._sending.start()

    def tell(self, message: object) -> None:
        """Queue a message for the driver; once closed, drop it."""
        if not self._closed:
            self._queue.put(message)

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until all that was told is sent: the next thing to do may end this process."""
        sent = threading.Event()
        self.tell(sent)
        if not self._closed:
            sent.wait(timeout)

    def stop_requested(self) -> bool:
        """Whether the driver asked for an orderly end."""
        return self._stop.is_set()

    def preempted(self) -> bool:
        """SIGTERM comes to the process, not over this link: see `preemption`."""
        return False

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, then close the connection."""
        self._closed = True
        self._queue.put(_END)
        self._sending.join(timeout)

    def _send_all(self, address: Address | None, timeout: float) -> None:
        connection = opened = _connect(address, timeout) if address else None
        listening = threading.Thread(target=self._listen, args=(opened,), daemon=True)
        listening.start()
        while (message := self._queue.get()) is not _END:
            if isinstance(message, threading.Event):
                message.set()
                continue
            if connection is not None and not _try_to_send(connection, _dumps(self._rank, message)):
                connection = None
            if connection is None:
                _print_here(self._rank, message)
        if opened is not None:
            _close(opened)
        listening.join()

    def _listen(self, connection: Connection | None) -> None:
        try:
            while connection is not None:
                if connection.recv_bytes() == ABORT:
                    self._on_abort()
                self._stop.set()
        except (EOFError, OSError, TypeError):  # TypeError: closed by the sending thread meanwhile
            return


def _connect(address: Address, timeout: float) -> Connection | None:
    """Connect in time: a firewall that drops packets must not hold us up."""
    try:
        socket.create_connection((address.host, address.port), timeout).close()
        return Client((address.host, address.port), authkey=address.secret)
    except Exception:  # unreachable, refused or gone: training goes on without it
        return None


def _close(connection: Connection) -> None:
    """Close what another thread may be reading: a mere close() would leave it waiting."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
    connection.close()


def _print_here(rank: int, message: object) -> None:
    if isinstance(message, Output) and sys.__stderr__ is not None:
        sys.__stderr__.write(f"[rank {rank}] {message.text}\n")


def _dumps(rank: int, message: object) -> bytes | None:
    try:
        return bytes(cloudpickle.dumps((rank, message)))
    except Exception:  # telling never fails: what doesn't pickle is dropped
        return None


def _try_to_send(connection: Connection, data: bytes | None) -> bool:
    try:
        if data is not None:
            connection.send_bytes(data)
    except (OSError, ValueError, EOFError):  # the other end has gone
        return False
    return True
