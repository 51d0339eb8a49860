from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from farandole.engines import authenticated_listener
from farandole.engines.authenticated_listener import AuthenticatedListener, listen
from farandole.engines.channel import ANSWER_BYTES, Channel, connect
from farandole.engines.encryption import Credentials
from farandole.errors import NotAuthentic

SECRET = b"known to this run only"
CREDENTIALS = Credentials(SECRET)
LIMIT = 1 << 20


class Reception:
    """A listener that answers each message of those who were let in, and notes the others."""

    def __init__(self) -> None:
        self.strangers: list[str] = []
        self.channels: list[Channel] = []
        socket_ = listen("127.0.0.1")
        self.address: tuple[str, int] = socket_.getsockname()
        self.listener = AuthenticatedListener(
            socket_,
            CREDENTIALS,
            b"test",
            limit=LIMIT,
            on_channel=self.welcome,
            on_stranger=self.strangers.append,
        )

    def welcome(self, channel: Channel) -> None:
        self.channels.append(channel)
        channel.send(b"welcome")

    def close(self) -> None:
        self.listener.close()
        for channel in self.channels:
            channel.close()

    def call(self, secret: bytes = SECRET, purpose: bytes = b"test") -> bytes:
        channel = connect(self.address, Credentials(secret), purpose, timeout=60, limit=LIMIT)
        try:
            return channel.receive()
        finally:
            channel.close()


@pytest.fixture
def reception() -> Iterator[Reception]:
    threads = set(threading.enumerate())
    found = Reception()
    yield found
    found.close()
    assert set(threading.enumerate()) <= threads


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_who_knows_the_secret_is_let_in(reception: Reception) -> None:
    assert [reception.call() for _ in range(3)] == [b"welcome"] * 3
    assert reception.strangers == []


def test_it_listens_at_one_address_only() -> None:
    with listen("127.0.0.1") as one, listen("127.0.0.1") as two:
        assert one.getsockname()[0] == "127.0.0.1"
        assert one.getsockname()[1] != two.getsockname()[1]


@pytest.mark.parametrize(
    ("secret", "purpose"), [(b"the one of the last run", b"test"), (SECRET, b"something else")]
)
def test_who_does_not_know_it_is_refused_and_named_once(
    reception: Reception, secret: bytes, purpose: bytes
) -> None:
    for _ in range(3):
        with pytest.raises(NotAuthentic, match="another run"):
            reception.call(secret, purpose)
    assert reception.call() == b"welcome"
    (text,) = reception.strangers
    assert "127.0.0.1" in text
    assert "does not know the secret of this run" in text
    assert "goes on" in text


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 63, b"x" * 10_000])
def test_other_languages_are_refused(reception: Reception, words: bytes) -> None:
    with (
        socket.create_connection(reception.address, 60) as stranger,
        suppress(OSError),  # it may be closed before all is said
    ):
        stranger.sendall(words)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1000):
            pass
    assert eventually(lambda: len(reception.strangers) == 1)
    assert reception.call() == b"welcome"


def test_who_comes_and_goes_is_no_stranger(reception: Reception) -> None:
    socket.create_connection(reception.address, 60).close()
    assert reception.call() == b"welcome"
    assert reception.strangers == []


def test_the_silent_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticated_listener, "_HANDSHAKE_SECONDS", 0.2)
    reception = Reception()
    with (
        socket.create_connection(reception.address, 60) as silent,
        socket.create_connection(reception.address, 60) as slow,
    ):
        slow.sendall(b"x")  # one word doesn't help
        for each in (silent, slow):
            while each.recv(1000):
                pass
    (text,) = reception.strangers
    assert "said nothing for 0.2 s" in text
    reception.close()


def test_a_crowd_of_silent_ones_keeps_nobody_out(reception: Reception) -> None:
    most = authenticated_listener._MOST_WAITING
    with ExitStack() as stack:
        for _ in range(3 * most):
            stack.enter_context(socket.create_connection(reception.address, 60))
        assert [reception.call() for _ in range(10)] == [b"welcome"] * 10
        assert len(reception.listener._waiting) <= most
        (text,) = reception.strangers
        assert "too many connect and say nothing" in text


def test_a_flood_that_never_ends_keeps_nobody_out_for_long(reception: Reception) -> None:
    done = threading.Event()

    def flood() -> None:
        crowd: list[socket.socket] = []
        while not done.is_set():
            try:
                crowd.append(socket.create_connection(reception.address, 1))
            except OSError:
                continue
            if len(crowd) > 300:
                crowd.pop(0).close()
        for each in crowd:
            each.close()

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        assert [reception.call() for _ in range(5)] == [b"welcome"] * 5
    finally:
        done.set()
        flooding.join()


def test_telling_of_a_stranger_may_fail(reception: Reception) -> None:
    def fail(text: str) -> None:
        raise OSError("stderr is closed")

    reception.listener._on_stranger = fail
    with pytest.raises(NotAuthentic):
        reception.call(b"the one of the last run")
    assert reception.call() == b"welcome"


def test_an_answer_may_come_byte_by_byte(reception: Reception) -> None:
    """A network may cut anything anywhere; what is complete is refused at once."""
    with socket.create_connection(reception.address, 60) as slow:
        for _ in range(ANSWER_BYTES):
            slow.sendall(b"x")
        assert eventually(lambda: len(reception.strangers) == 1)
    assert "does not know the secret" in reception.strangers[0]
