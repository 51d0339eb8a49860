"""Requests that leave by the clock, over plain sockets and epoll.

An event loop's objects would make the sender slower than the servers that it measures.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

CONNECTIONS = 64
HOST = "127.0.0.1"


def whole(head: bytes, body: bytes) -> bool:
    """Whether this is all of an answer: it has its length, or ends with an empty chunk."""
    _, known, rest = head.lower().partition(b"content-length: ")
    return len(body) >= int(rest.split(b"\r\n")[0]) if known else body.endswith(b"0\r\n\r\n")


class Connection:
    """One request at a time. What comes after the one that is answered is a fault."""

    __slots__ = ("due", "number", "socket", "text", "usual")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.text = b""
        self.usual = 0  # bytes of a whole answer, where the next is as long as the last
        self.due = 0.0
        self.number = 0

    def send(self, request: bytes) -> bool:
        """Whether all of it went out: the server may have left."""
        self.text = b""
        try:
            return self.socket.send(request) == len(request)
        except OSError:
            return False

    def receive(self) -> bool | None:
        """Whether `text` is a whole answer now; None: the connection is broken."""
        try:
            more = self.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            return None
        if not more:
            return None
        self.text = self.text + more if self.text else more
        if len(self.text) == self.usual and self.text.startswith(b"HTTP/1.1 200"):
            return True
        head, found, body = self.text.partition(b"\r\n\r\n")
        if not (found and whole(head, body)):
            return False
        self.usual = len(self.text)
        return True


class OpenLoop:
    """Sends requests at a rate, one after another of a list, over connections that are free.

    Its times count from when a request was due. A subclass says what becomes of answers.
    """

    behind = float("inf")
    """Seconds after which a server won't catch up, and sending ends."""

    def __init__(self, port: int, requests: Sequence[bytes], rate: float, seconds: float) -> None:
        self._port, self._requests = port, requests
        gaps = np.random.default_rng(0).exponential(1 / rate, max(1, int(rate * seconds)))
        self._times = np.cumsum(gaps).tolist()
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._free: deque[Connection] = deque()
        self._again: deque[tuple[int, float]] = deque()  # whose connection broke

    def answered(self, connection: Connection) -> None:
        """All of an answer has come."""
        raise NotImplementedError

    def broken(self, connection: Connection) -> None:
        """The connection ended without an answer."""
        raise NotImplementedError

    def run(self, wait: float) -> int:
        """Send all requests; give how many were sent. The last answers have so many seconds."""
        try:
            while len(self._connections) < CONNECTIONS:
                self._connect()
            return self._send_and_receive(wait)
        finally:
            for one in self._connections.values():
                one.socket.close()
            self._poll.close()

    def _connect(self) -> None:
        one = Connection(self._port)
        self._connections[one.socket.fileno()] = one
        self._poll.register(one.socket, select.EPOLLIN)
        self._free.append(one)

    def _send_and_receive(self, wait: float) -> int:
        start = time.perf_counter() + 0.05
        times = [start + one for one in self._times]
        count, sent, free, clock = len(times), 0, self._free, time.perf_counter
        deadline = times[-1] + wait
        while (now := clock()) < deadline:
            while free and self._again:
                self._ask(*self._again.popleft())
            while sent < count and free and times[sent] <= now:
                self._ask(sent % len(self._requests), times[sent])
                sent += 1
            if sent == count and len(free) == len(self._connections):
                break
            if sent < count and now - times[sent] > self.behind:
                break
            until = times[sent] if sent < count and free else deadline
            for number, _ in self._poll.poll(max(until - now, 0.0)):
                self._receive(self._connections[number])
        return sent

    def _ask(self, number: int, due: float) -> None:
        one = self._free.popleft()
        one.number, one.due = number, due
        if not one.send(self._requests[number]):
            self._lose(one)

    def _receive(self, one: Connection) -> None:
        done = one.receive()
        if done:
            self.answered(one)
            self._free.append(one)
        elif done is None:
            self._lose(one)

    def _lose(self, one: Connection) -> None:
        """Another in its place."""
        del self._connections[one.socket.fileno()]
        self._poll.unregister(one.socket)
        one.socket.close()
        if one in self._free:  # it was idle: nobody waits for an answer
            self._free.remove(one)
        else:
            self.broken(one)
        self._connect()

    def ask_again(self, connection: Connection) -> None:
        """The request of a broken connection, as soon as another is free."""
        self._again.append((connection.number, connection.due))
