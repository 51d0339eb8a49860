"""A channel: a connection whose two ends have proved to each other that they know a secret.

    listener → caller    version, nonce
    caller → listener    nonce, proof                  a proof is an HMAC of purpose and both nonces
    listener → caller    its own proof, or REFUSED

Then messages of bytes, each with its length before it, and behind it a code over its number and
its content. The codes' keys are new for each connection and each direction, so nothing that was
once sent can be sent again. Where the run has a certificate, all that follows on the proofs is
encrypted with TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import time
from contextlib import suppress

from farandole.engines.encryption import Credentials, TlsConnection
from farandole.errors import NotAuthentic

VERSION = b"farandole-1\n"
NONCE_BYTES = PROOF_BYTES = 32
GREETING_BYTES = len(VERSION) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
REFUSED = bytes(PROOF_BYTES)

_LENGTH = struct.Struct("!Q")
_AT_ONCE = 1 << 20
"""Bytes to make room for at a time: a length that is a lie costs no memory."""


class Channel:
    """One end of a connection that has been authenticated. One thread may send, another receive."""

    def __init__(
        self, connection: socket.socket, send_key: bytes, receive_key: bytes, limit: int
    ) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connection
        self._connection: socket.socket | TlsConnection = connection
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0
        self._limit = limit

    def encrypt(self, certificate: str, timeout: float, *, is_listener: bool) -> None:
        """Go on in TLS, on both ends; `NotAuthentic` if the other has not the same certificate."""
        secured = TlsConnection(self._socket, certificate, is_listener=is_listener)
        self._socket.settimeout(timeout)
        try:
            secured.handshake()
        except ssl.SSLError as error:
            text = f"the other end does not have the certificate of this run ({error})"
            raise NotAuthentic(text) from error
        self._socket.settimeout(None)
        self._connection = secured

    def send(self, message: bytes) -> None:
        """Send one message."""
        if len(message) > self._limit:
            raise ValueError(
                f"a message of {len(message)} bytes; at most {self._limit} can be sent"
            )
        code = _code(self._send_key, self._sent, message)
        self._sent += 1
        head = _LENGTH.pack(len(message))
        if len(message) < _AT_ONCE:
            self._connection.sendall(head + message + code)
            return
        for part in (head, message, code):
            self._connection.sendall(part)

    def receive(self) -> bytes:
        """The next message; EOFError at the end, `NotAuthentic` if it isn't the other end's."""
        (length,) = _LENGTH.unpack(receive_exactly(self._connection, _LENGTH.size))
        if length > self._limit:
            raise NotAuthentic(f"a message of {length} bytes was announced; {self._limit} at most")
        message = receive_exactly(self._connection, length)
        code = receive_exactly(self._connection, PROOF_BYTES)
        if not hmac.compare_digest(code, _code(self._receive_key, self._received, message)):
            raise NotAuthentic("a message has not come as it was sent")
        self._received += 1
        return message

    def set_timeout(self, seconds: float | None) -> None:
        """How long one call may wait; TimeoutError then, after which the channel is of no use."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Close it, also while another thread waits for a message."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def connect(
    address: tuple[str, int],
    credentials: Credentials,
    purpose: bytes,
    *,
    timeout: float,
    limit: int,
) -> Channel:
    """Call a listener, again and again if it drops the call; `NotAuthentic` if it is a stranger.

    A listener that is flooded drops who came first. Who isn't there at all is called once.
    """
    deadline = time.monotonic() + timeout
    pause = 0.02
    while True:
        try:
            return _connect_once(address, credentials, purpose, deadline, limit)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            if time.monotonic() + pause > deadline:
                raise TimeoutError(f"{address[0]}:{address[1]} drops every call") from None
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _connect_once(
    address: tuple[str, int],
    credentials: Credentials,
    purpose: bytes,
    deadline: float,
    limit: int,
) -> Channel:
    connection = socket.create_connection(address, max(0.1, deadline - time.monotonic()))
    try:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        greeting = receive_exactly(connection, GREETING_BYTES)
        if not greeting.startswith(VERSION):
            raise NotAuthentic("what answers there is no farandole, or another version of it")
        handshake = Handshake(credentials.secret, purpose, greeting[len(VERSION) :], new_nonce())
        connection.sendall(handshake.caller_nonce + handshake.caller_proof)
        proof = receive_exactly(connection, PROOF_BYTES)
        if not hmac.compare_digest(proof, handshake.listener_proof):
            raise NotAuthentic("the secret is not the listener's: it may belong to another run")
        channel = handshake.caller_channel(connection, limit)
        if credentials.certificate is not None:
            left = max(0.1, deadline - time.monotonic())
            channel.encrypt(credentials.certificate, left, is_listener=False)
    except BaseException:
        connection.close()
        raise
    return channel


class Handshake:
    """What both ends compute of the secret and of the two nonces."""

    def __init__(
        self, secret: bytes, purpose: bytes, listener_nonce: bytes, caller_nonce: bytes
    ) -> None:
        assert len(secret) >= 16, "a secret that can be guessed is none"
        self.caller_nonce = caller_nonce
        self._secret = secret
        self._about = purpose + b"\n" + listener_nonce + caller_nonce

    @property
    def caller_proof(self) -> bytes:
        """What the caller proves itself with."""
        return self._derived(b"caller")

    @property
    def listener_proof(self) -> bytes:
        """What the listener answers."""
        return self._derived(b"listener")

    def caller_channel(self, connection: socket.socket, limit: int) -> Channel:
        """The caller's end."""
        return Channel(connection, self._derived(b"up"), self._derived(b"down"), limit)

    def listener_channel(self, connection: socket.socket, limit: int) -> Channel:
        """The listener's end."""
        return Channel(connection, self._derived(b"down"), self._derived(b"up"), limit)

    def _derived(self, role: bytes) -> bytes:
        return hmac.digest(self._secret, role + b" " + self._about, "sha256")


def new_nonce() -> bytes:
    """Bytes that nobody has used before."""
    return secrets.token_bytes(NONCE_BYTES)


def receive_exactly(connection: socket.socket | TlsConnection, count: int) -> bytes:
    """So many bytes; EOFError if the other end has closed."""
    data = bytearray(min(count, _AT_ONCE))
    done = 0
    while done < count:
        if done == len(data):
            data.extend(bytes(min(count - done, max(_AT_ONCE, done))))
        with memoryview(data) as view:
            received = connection.recv_into(view[done:])
        if received == 0:
            raise EOFError("connection closed by peer")
        done += received
    return bytes(data)


def _code(key: bytes, number: int, message: bytes) -> bytes:
    code = hmac.new(key, _LENGTH.pack(number), hashlib.sha256)
    code.update(message)
    return code.digest()
