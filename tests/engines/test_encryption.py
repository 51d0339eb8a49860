from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from farandole.engines.authenticated_listener import AuthenticatedListener, listen
from farandole.engines.channel import Channel, connect
from farandole.engines.encryption import Credentials, make_certificate
from farandole.errors import LaunchError, NotAuthentic

SECRET = b"known to this run only"
LIMIT = 1 << 24


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    return Credentials(SECRET, make_certificate())


class Echo:
    """Sends back what it hears, from behind a wire that is tapped."""

    def __init__(self, credentials: Credentials) -> None:
        self.channels: list[Channel] = []
        self.seen = b""
        inner = listen("127.0.0.1")
        self.inner: tuple[str, int] = inner.getsockname()
        self.listener = AuthenticatedListener(
            inner, credentials, b"test", limit=LIMIT, on_channel=self.welcome, on_stranger=print
        )
        self.tap = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.tap.getsockname()
        threading.Thread(target=self.pass_on, daemon=True).start()

    def welcome(self, channel: Channel) -> None:
        self.channels.append(channel)
        threading.Thread(target=self.echo, args=(channel,), daemon=True).start()

    def echo(self, channel: Channel) -> None:
        try:
            while True:
                channel.send(channel.receive())
        except (EOFError, OSError):
            channel.close()

    def pass_on(self) -> None:
        while True:
            try:
                caller, _ = self.tap.accept()
            except OSError:
                return
            inner = socket.create_connection(self.inner)
            for pair in ((caller, inner), (inner, caller)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self.tap.shutdown(socket.SHUT_RDWR)
        self.tap.close()
        self.listener.close()
        for channel in self.channels:
            channel.close()


@pytest.fixture
def echo(credentials: Credentials) -> Iterator[Echo]:
    with closing(Echo(credentials)) as found:
        yield found


def call(echo: Echo, credentials: Credentials) -> Channel:
    return connect(echo.address, credentials, b"test", timeout=60, limit=LIMIT)


def test_nobody_on_the_wire_can_read_it(echo: Echo, credentials: Credentials) -> None:
    with closing(call(echo, credentials)) as channel:
        for message in (b"in clear text? " * 10, b"in clear text? " * 100_000):
            sending = threading.Thread(target=channel.send, args=(message,))
            sending.start()  # while it receives
            assert channel.receive() == message
            sending.join(60)
    assert b"in clear text?" not in echo.seen
    assert b"\x16\x03" in echo.seen  # a TLS handshake
    assert echo.seen.count(b"\x17\x03\x03") > 20  # records of TLS 1.3
    assert SECRET not in echo.seen


def test_without_it_they_could() -> None:
    plain = Credentials(SECRET)
    with closing(Echo(plain)) as echo, closing(call(echo, plain)) as channel:
        channel.send(b"in clear text?")
        channel.receive()
        assert b"in clear text?" in echo.seen


def test_the_secret_alone_is_not_enough(echo: Echo, credentials: Credentials) -> None:
    with pytest.raises(NotAuthentic):
        call(echo, Credentials(SECRET, make_certificate())).receive()
    with closing(call(echo, Credentials(SECRET))) as channel:  # goes on in clear text
        channel.send(b"hello")
        with pytest.raises((EOFError, OSError)):
            channel.receive()
    with closing(call(echo, credentials)) as channel:
        channel.send(b"hello")
        assert channel.receive() == b"hello"


def test_certificates_are_new_each_time_and_not_shown() -> None:
    one, two = make_certificate(), make_certificate()
    assert one != two
    assert repr(Credentials(SECRET, one)) == "Credentials()"


def test_what_is_missing_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="the program `openssl`"):
        make_certificate()
