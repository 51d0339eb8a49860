"""The driver's end of the workers' heartbeats: which worker is lost, and why.

One thread serves all connections, so a thousand silent strangers cost no more than their sockets,
of which few are kept.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from farandole.engines.base import DEFAULT_HEARTBEAT
from farandole.engines.heartbeat import HeartbeatAddress
from farandole.engines.heartbeat_sender import (
    BEATS,
    DEAD,
    DONE,
    HELLO,
    LENGTH,
    MAC_BYTES,
    MOST_TEXT,
    NONCE_BYTES,
    STUCK,
    clock,
    hello,
    kill_command,
    mac,
    session_key,
)
from farandole.engines.process_exit import describe_exit
from farandole.errors import WorkerLost

_MOST_STRANGERS = 64
_HELLO_SECONDS = 10.0
_MOST_PLACES = 5
_CRASHES = {
    b"Segmentation fault": signal.SIGSEGV,
    b"Bus error": signal.SIGBUS,
    b"Aborted": signal.SIGABRT,
    b"Illegal instruction": signal.SIGILL,
    b"Floating point exception": signal.SIGFPE,
    b"Floating-point exception": signal.SIGFPE,
}
"""What faulthandler calls signals."""
_Beat = Callable[[int, bytes, bytes], None]


class HeartbeatMonitor:
    """Listens to the beats of all workers. Use as a context manager; leaving it by an error kills
    every worker that still has a heartbeat, be it stopped.

    Args:
        host: The address to listen on.
        seconds: After which a worker that doesn't respond is lost.
    """

    def __init__(self, host: str, seconds: float = DEFAULT_HEARTBEAT) -> None:
        self._listener = socket.create_server((host, 0), backlog=1024)
        self._listener.setblocking(False)
        place = self._listener.getsockname()
        self.address = HeartbeatAddress(host, int(place[1]), secrets.token_bytes(32), seconds)
        self._heard: dict[int, float] = {}
        self._connections: list[_Connection] = []
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._killing = self._closed = False
        self._lost: WorkerLost | None = None
        self.crashes: dict[int, str] = {}
        """Where the main threads of workers were that crashed, by rank."""
        self._first: threading.Event = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> HeartbeatMonitor:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.kill_workers()
        self._closed = True
        self._wake.send(b".")
        self._thread.join(5)
        for connection in self._connections:
            connection.close()
        for end in (self._listener, self._wake, self._woken):
            end.close()
        self._selector.close()

    @property
    def lost(self) -> WorkerLost | None:
        """The first worker that died, got stuck or fell silent; None while all are well."""
        return self._lost

    def wait_for_loss(self, seconds: float) -> WorkerLost | None:
        """Wait, so many seconds at most, for a worker to be lost."""
        self._first.wait(seconds)
        return self._lost

    def kill_workers(self) -> None:
        """Let every worker that still has a heartbeat be killed, be it stopped."""
        self._killing = True
        self._wake.send(b".")

    def _serve(self) -> None:
        interval = self.address.seconds / BEATS
        before = clock()
        closing = False
        while not closing:
            closing = self._closed  # then once more: what came last is to be heard and sent
            ready = self._selector.select(0 if closing else min(1.0, interval))
            now = clock()
            if now - before > 1.0 + interval:  # this driver was asleep or stopped itself
                self._heard = dict.fromkeys(self._heard, now)
            before = now
            for key, _ in ready:
                self._take(key, now)
            self._drop_strangers(now)
            self._find_silent(now)
            if self._killing:
                for connection in self._connections:
                    connection.kill()

    def _take(self, key: selectors.SelectorKey, now: float) -> None:
        if key.fileobj is self._listener:
            self._accept(now)
        elif key.fileobj is self._woken:
            self._woken.recv(64)
        elif isinstance(key.data, _Connection) and not key.data.receive():
            self._close(key.data)

    def _accept(self, now: float) -> None:
        try:
            opened, _ = self._listener.accept()
        except OSError:
            time.sleep(0.01)  # no file handle is free: it stays ready, and would be asked for ever
            return
        connection = _Connection(opened, self.address.secret, now, self._note)
        self._connections.append(connection)
        self._selector.register(opened, selectors.EVENT_READ, connection)

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        self._connections.remove(connection)
        connection.close()

    def _drop_strangers(self, now: float) -> None:
        """Close connections that have not said who they are for too long, or are too many."""
        strangers = [one for one in self._connections if one.rank is None]
        late = [one for one in strangers if now - one.since > _HELLO_SECONDS]
        for connection in {*late, *strangers[:-_MOST_STRANGERS]}:
            self._close(connection)

    def _note(self, rank: int, kind: bytes, text: bytes) -> None:
        """Take down what a worker's sender says."""
        self._heard[rank] = clock()
        if kind == DONE:
            del self._heard[rank]
        elif kind == STUCK:
            self._lose(rank, describe_stuck(text))
        elif kind == DEAD:
            del self._heard[rank]
            self.crashes[rank] = _describe_place(text)
            self._lose(rank, describe_death(text))

    def _find_silent(self, now: float) -> None:
        for rank, since in list(self._heard.items()):
            if now - since > self.address.seconds:
                self._lose(
                    rank,
                    f"nothing was heard of it for {now - since:.0f} s: its host is down or asleep, "
                    "or can't be reached over the network",
                )

    def _lose(self, rank: int, why: str) -> None:
        self._lost = self._lost or WorkerLost(rank, why)
        self._first.set()


class _Connection:
    """One sender, or a stranger: until `rank` is known, it is one."""

    def __init__(self, opened: socket.socket, secret: bytes, since: float, note: _Beat) -> None:
        self.socket = opened
        self.since = since
        self.rank: int | None = None
        self._secret = secret
        self._note = note
        self._nonce = os.urandom(NONCE_BYTES)
        self._key = b""
        self._frames = 0
        self._data = b""
        self._told_to_kill = False
        opened.setblocking(False)
        with suppress(OSError):
            opened.send(self._nonce)

    def receive(self) -> bool:
        """Read what has come; False when the connection is over, or no sender's."""
        try:
            more = self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._data += more
        if self.rank is None and len(self._data) >= HELLO.size and not self._authenticate():
            return False
        return bool(more) and (self.rank is None or self._read_frames())

    def kill(self) -> None:
        """Let the sender kill its worker."""
        if self.rank is not None and not self._told_to_kill:
            self._told_to_kill = True
            with suppress(OSError):
                self.socket.send(kill_command(self._key))

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _authenticate(self) -> bool:
        start, self._data = self._data[: HELLO.size], self._data[HELLO.size :]
        theirs, rank, _ = HELLO.unpack(start)
        if not hmac.compare_digest(start, hello(self._secret, self._nonce, theirs, rank)):
            return False
        self._key = session_key(self._secret, self._nonce, theirs)
        self.rank = rank
        return True

    def _read_frames(self) -> bool:
        while len(self._data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data)
            if not 1 <= length <= MOST_TEXT + 1:
                return False
            end = LENGTH.size + length
            if len(self._data) < end + MAC_BYTES:
                return True
            body, proof = self._data[LENGTH.size : end], self._data[end : end + MAC_BYTES]
            expected = mac(self._key, self._frames.to_bytes(8, "big"), body)
            if not hmac.compare_digest(proof, expected):
                return False
            self._frames += 1
            self._data = self._data[end + MAC_BYTES :]
            assert self.rank is not None
            self._note(self.rank, body[:1], body[1:])
        return True


def describe_stuck(text: bytes) -> str:
    """Say why a worker's interpreter doesn't tick, from what its sender found.

    >>> describe_stuck(b"T 25 ")
    'its process has been stopped (SIGSTOP) for 25 s'
    """
    state, seconds, stack = [*text.split(b" ", 2), b"", b""][:3]
    age = f"{int(seconds)} s" if seconds.isdigit() else "long"
    if state in (b"T", b"t"):
        by = "by a debugger" if state == b"t" else "(SIGSTOP)"
        return f"its process has been stopped {by} for {age}"
    if state == b"D":
        why = "its process waits for a disk or a network drive"
    else:
        why = "a C function most likely holds the interpreter lock"
    return f"its interpreter has been locked for {age}: {why}{_describe_place(stack)}"


def describe_death(text: bytes) -> str:
    """Say how a worker's process died, from what its sender found.

    That is a wait status if the sender was in time, whether the kernel had killed a process for
    lack of memory ("m"), and what the worker itself wrote down of a crash.

    >>> describe_death(b"11 - ")[:43]
    'its process died of a segmentation fault (S'
    """
    status, memory, crash = [*text.split(b" ", 2), b"", b""][:3]
    out_of_memory = memory == b"m"
    if status.isdigit() and int(status):
        code = os.waitstatus_to_exitcode(int(status))
    else:
        code = next((-number for words, number in _CRASHES.items() if words in crash), 0)
        code = -signal.SIGKILL if not code and out_of_memory else code
    if code == 0:
        return (
            "its process died without an error message: it was killed (SIGKILL), or left by "
            "os._exit()"
        )
    return describe_exit(code, out_of_memory=out_of_memory) + _describe_place(crash)


def _describe_place(stack: bytes) -> str:
    """Where a thread was, as faulthandler has it; nothing if that is unknown."""
    lines = [line.strip() for line in stack.decode(errors="replace").splitlines()]
    places = [line for line in lines if line.startswith("File ")][:_MOST_PLACES]
    start = ". It was in (most recent call first):"
    return "\n  ".join([start, *places]) if places else ""
