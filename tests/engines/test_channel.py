from __future__ import annotations

import hmac
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import psutil
import pytest

from farandole.engines.channel import (
    ANSWER_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    VERSION,
    Channel,
    Handshake,
    connect,
    new_nonce,
)
from farandole.engines.encryption import Credentials
from farandole.errors import NotAuthentic

SECRET = b"known to both ends only"
CREDENTIALS = Credentials(SECRET)
LIMIT = 1 << 24


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        return caller, server.accept()[0]


class Wire:
    """Two ends of a channel, and what goes over the wire from the first to the second."""

    def __init__(self) -> None:
        out, self.tap = connected()
        self.into, arrived = connected()
        handshake = Handshake(SECRET, b"test", new_nonce(), new_nonce())
        self.caller = handshake.caller_channel(out, LIMIT)
        self.listener = handshake.listener_channel(arrived, LIMIT)

    def pass_on(self, change: bytes = b"", by: bytes = b"") -> bytes:
        """Let what was sent go on, changed; gives what was sent."""
        sent = self.tap.recv(1 << 16)
        self.into.sendall(sent.replace(change, by) if change else sent)
        return sent

    def close(self) -> None:
        for each in (self.caller, self.listener, self.tap, self.into):
            each.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with closing(Wire()) as found:
        yield found


def test_messages_arrive_as_they_were_sent(wire: Wire) -> None:
    for message in (b"", b"one", b"\0" * 1000):
        wire.caller.send(message)
        wire.pass_on()
        assert wire.listener.receive() == message


def test_a_large_message_arrives_whole(wire: Wire) -> None:
    message = bytes(range(256)) * 40_000

    def pass_all_on() -> None:
        passed = 0
        while passed < len(message) + 8 + PROOF_BYTES:
            passed += len(wire.pass_on())

    threads = [
        threading.Thread(target=wire.caller.send, args=(message,)),
        threading.Thread(target=pass_all_on),
    ]
    for thread in threads:
        thread.start()
    assert wire.listener.receive() == message
    for thread in threads:
        thread.join()


def test_a_changed_message_is_noticed(wire: Wire) -> None:
    wire.caller.send(b"pay 10")
    wire.pass_on(b"pay 10", b"pay 99")
    with pytest.raises(NotAuthentic, match="not come as it was sent"):
        wire.listener.receive()


def test_a_message_that_comes_a_second_time_is_noticed(wire: Wire) -> None:
    wire.caller.send(b"pay 10")
    sent = wire.pass_on()
    assert wire.listener.receive() == b"pay 10"
    wire.into.sendall(sent)
    with pytest.raises(NotAuthentic, match="not come as it was sent"):
        wire.listener.receive()


def test_a_message_is_not_one_of_the_other_direction(wire: Wire) -> None:
    wire.caller.send(b"mine")
    sent = wire.tap.recv(1 << 16)
    wire.tap.sendall(sent)  # back to where it came from
    with pytest.raises(NotAuthentic, match="not come as it was sent"):
        wire.caller.receive()


def test_there_is_a_longest_message_both_ways(wire: Wire) -> None:
    with pytest.raises(ValueError, match="of 16777217 bytes; at most 16777216 can"):
        wire.caller.send(bytes(LIMIT + 1))
    wire.into.sendall(struct.pack("!Q", LIMIT + 1))
    with pytest.raises(NotAuthentic, match="16777217 bytes was announced"):
        wire.listener.receive()


def test_a_length_that_is_a_lie_costs_no_memory() -> None:
    caller, end = connected()
    with closing(Channel(end, SECRET, SECRET, 1 << 40)) as channel:
        caller.sendall(struct.pack("!Q", 1 << 39) + b"a few bytes")
        caller.close()
        before = psutil.Process().memory_info().vms
        with pytest.raises(EOFError):
            channel.receive()
        assert psutil.Process().memory_info().vms - before < 1 << 30


class FalseListener(threading.Thread):
    """Knows everything but the secret; remembers what callers tell it."""

    def __init__(self, greeting: bytes, answer: bytes) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.server.getsockname()
        self.greeting, self.answer = greeting, answer
        self.heard = b""
        self.start()

    def run(self) -> None:
        with self.server, self.server.accept()[0] as peer, suppress(ConnectionError):
            peer.sendall(self.greeting)
            while len(self.heard) < ANSWER_BYTES and (data := peer.recv(ANSWER_BYTES)):
                self.heard += data
            peer.sendall(self.answer or self.heard[NONCE_BYTES:])
            while data := peer.recv(1024):
                self.heard += data


@pytest.mark.parametrize("answer", [b"\0" * PROOF_BYTES, b"x" * PROOF_BYTES, b""])
def test_a_listener_without_the_secret_hears_nothing(answer: bytes) -> None:
    false = FalseListener(VERSION + new_nonce(), answer)  # the last one sends the proof back
    with pytest.raises(NotAuthentic, match="may belong to another run"):
        connect(false.address, CREDENTIALS, b"test", timeout=60, limit=LIMIT)
    false.join(60)
    assert len(false.heard) == ANSWER_BYTES
    assert SECRET not in false.heard


def test_another_program_is_told_apart() -> None:
    false = FalseListener(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n......", b"")
    with pytest.raises(NotAuthentic, match="no farandole"):
        connect(false.address, CREDENTIALS, b"test", timeout=60, limit=LIMIT)
    false.join(60)


def test_who_drops_every_call_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        with pytest.raises(TimeoutError, match="drops every call"):
            connect(server.getsockname(), CREDENTIALS, b"test", timeout=0.5, limit=LIMIT)
        server.shutdown(socket.SHUT_RDWR)
        hanging_up.join(60)


def test_the_proofs_are_what_the_page_says() -> None:
    handshake = Handshake(SECRET, b"store", b"L" * 32, b"C" * 32)
    about = b"store\n" + b"L" * 32 + b"C" * 32
    assert handshake.caller_proof == hmac.new(SECRET, b"caller " + about, "sha256").digest()
    assert handshake.listener_proof == hmac.new(SECRET, b"listener " + about, "sha256").digest()
