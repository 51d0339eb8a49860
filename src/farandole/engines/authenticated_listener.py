"""A listener that lets in only who knows the run's secret, and says who did not.

One thread greets all who call. Strangers are bounded in number and in time, whatever they do: who
keeps silent is dropped after some seconds, and when too many wait, who has waited longest.
A worker needs some milliseconds, and calls again if it is dropped.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from farandole.engines.channel import (
    ANSWER_BYTES,
    NONCE_BYTES,
    REFUSED,
    VERSION,
    Channel,
    Handshake,
    new_nonce,
)
from farandole.engines.encryption import Credentials

_HANDSHAKE_SECONDS = 10.0
_MOST_WAITING = 128
"""Connections that have not proved anything yet."""
_MOST_NAMED = 256
"""Addresses of strangers to tell of; more tell nothing new."""
_BACKLOG = 1024

StrangerHandler = Callable[[str], None]
"""Receives a sentence about somebody who was not let in, once for each address."""


def listen(host: str) -> socket.socket:
    """A listening socket on a free port of one interface.

    Binding port 0 leaves no gap in which another process could take the port.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@dataclass
class _Caller:
    """Somebody who has not proved anything yet."""

    connection: socket.socket
    host: str
    deadline: float
    nonce: bytes = field(default_factory=new_nonce)
    received: bytes = b""


class AuthenticatedListener:
    """Calls `on_channel` for each caller that knows the secret, from a thread of its own.

    Args:
        listener: the socket, which is closed with this.
        credentials: of the run.
        purpose: what callers come for; a proof for another purpose is none.
        limit: the longest message, in bytes.
        on_channel: must return at once.
        on_stranger: must return at once.
    """

    def __init__(
        self,
        listener: socket.socket,
        credentials: Credentials,
        purpose: bytes,
        *,
        limit: int,
        on_channel: Callable[[Channel], None],
        on_stranger: StrangerHandler,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._credentials, self._purpose, self._limit = credentials, purpose, limit
        self._on_channel, self._on_stranger = on_channel, on_stranger
        self._waiting: dict[socket.socket, _Caller] = {}  # who came first is first
        self._named: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for source in (listener, self._woken):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and drop who is still waiting."""
        self._wake.close()
        self._thread.join()
        self._selector.close()
        for connection in (*self._waiting, self._listener, self._woken):
            connection.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(self._next_deadline()):
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif (caller := self._waiting.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    self._advance(caller)
            now = time.monotonic()
            for caller in [each for each in self._waiting.values() if each.deadline <= now]:
                self._refuse(caller, f"it said nothing for {_HANDSHAKE_SECONDS:g} s")

    def _next_deadline(self) -> float | None:
        first = next(iter(self._waiting.values()), None)
        return None if first is None else max(0.0, first.deadline - time.monotonic())

    def _accept(self) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._refuse_oldest()
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:  # it has gone already
            return
        except OSError:  # no more files, or no memory: others have to go first
            self._refuse_oldest()
            time.sleep(0.01)
            return
        caller = _Caller(connection, str(address[0]), time.monotonic() + _HANDSHAKE_SECONDS)
        connection.setblocking(False)
        try:
            connection.send(VERSION + caller.nonce)  # a new connection has room for it
        except OSError:
            connection.close()
            return
        self._waiting[connection] = caller
        self._selector.register(connection, selectors.EVENT_READ)

    def _advance(self, caller: _Caller) -> None:
        try:
            data = caller.connection.recv(ANSWER_BYTES - len(caller.received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.received += data
        if not data:
            if caller.received:
                self._refuse(caller, "it does not speak farandole's language")
            else:
                self._forget(caller).close()  # a worker may die at any time
        elif len(caller.received) == ANSWER_BYTES:
            self._decide(caller)

    def _decide(self, caller: _Caller) -> None:
        theirs, proof = caller.received[:NONCE_BYTES], caller.received[NONCE_BYTES:]
        handshake = Handshake(self._credentials.secret, self._purpose, caller.nonce, theirs)
        if not hmac.compare_digest(proof, handshake.caller_proof):
            self._refuse(caller, "it does not know the secret of this run")
            return
        connection = self._forget(caller)
        try:
            connection.send(handshake.listener_proof)
            channel = handshake.listener_channel(connection, self._limit)
        except OSError:
            connection.close()
            return
        if self._credentials.certificate is None:
            self._on_channel(channel)
        else:  # takes some messages to and fro
            encrypting = (channel, self._credentials.certificate)
            threading.Thread(target=self._encrypt, args=encrypting, daemon=True).start()

    def _encrypt(self, channel: Channel, certificate: str) -> None:
        try:
            channel.encrypt(certificate, _HANDSHAKE_SECONDS, is_listener=True)
        except (OSError, EOFError):
            channel.close()
            return
        self._on_channel(channel)

    def _refuse_oldest(self) -> None:
        if self._waiting:
            self._refuse(next(iter(self._waiting.values())), "too many connect and say nothing")

    def _refuse(self, caller: _Caller, reason: str) -> None:
        connection = self._forget(caller)
        with suppress(OSError):
            if len(caller.received) == ANSWER_BYTES:
                connection.send(REFUSED)
        connection.close()
        if caller.host not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(caller.host)
            with suppress(Exception):  # whoever tells of strangers must not keep workers out
                self._on_stranger(
                    f"a connection from {caller.host} was refused: {reason}. The run goes on."
                )

    def _forget(self, caller: _Caller) -> socket.socket:
        del self._waiting[caller.connection]
        self._selector.unregister(caller.connection)
        return caller.connection
