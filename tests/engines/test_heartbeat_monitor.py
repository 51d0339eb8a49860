from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from farandole.engines.heartbeat_monitor import (
    _MOST_STRANGERS,
    HeartbeatMonitor,
    describe_death,
    describe_stuck,
)
from farandole.engines.heartbeat_sender import (
    BEAT,
    BEATS,
    DEAD,
    DONE,
    LENGTH,
    NONCE_BYTES,
    STUCK,
    frame,
    hello,
    kill_command,
    session_key,
)

LOOPBACK = "127.0.0.1"


opened: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


class Sender:
    """A sender by hand, with the settings of a monitor."""

    def __init__(self, monitor: HeartbeatMonitor, rank: int, secret: bytes | None = None) -> None:
        secret = secret or monitor.address.secret
        self.socket = socket.create_connection((LOOPBACK, monitor.address.port), 10)
        opened.append(self.socket)
        theirs, mine = self.socket.recv(NONCE_BYTES), os.urandom(NONCE_BYTES)
        self.key = session_key(secret, theirs, mine)
        self.frames = 0
        self.socket.sendall(hello(secret, theirs, mine, rank))

    def send(self, kind: bytes, text: bytes = b"") -> None:
        self.socket.sendall(frame(self.key, self.frames, kind, text))
        self.frames += 1


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def is_closed(end: socket.socket) -> bool:
    end.settimeout(30)
    try:
        return end.recv(1) == b""
    except ConnectionError:
        return True


def test_a_worker_that_falls_silent_is_lost() -> None:
    with HeartbeatMonitor(LOOPBACK, 0.5) as monitor:
        sender = Sender(monitor, 2)
        sender.send(BEAT)
        lost = monitor.wait_for_loss(30)
    assert lost is not None
    assert lost.rank == 2
    assert "nothing was heard of it" in lost.summary
    assert "can't be reached" in lost.summary


def test_a_worker_that_is_done_is_not_missed() -> None:
    with HeartbeatMonitor(LOOPBACK, 1.0) as monitor:
        sender = Sender(monitor, 0)
        sender.send(BEAT)
        sender.send(DONE)
        assert monitor.wait_for_loss(1.7) is None


def test_a_sender_that_comes_back_goes_on() -> None:
    with HeartbeatMonitor(LOOPBACK, 2.0) as monitor:
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            sender = Sender(monitor, 0)
            sender.send(BEAT)
            time.sleep(0.2)
            sender.socket.close()
        assert monitor.lost is None


@pytest.mark.parametrize(("kind", "text"), [(STUCK, b"T 25 "), (DEAD, b"11 - ")])
def test_the_first_worker_that_is_lost_is_named(kind: bytes, text: bytes) -> None:
    with HeartbeatMonitor(LOOPBACK, 60) as monitor:
        Sender(monitor, 4).send(kind, text)
        assert eventually(lambda: monitor.lost is not None)
        Sender(monitor, 1).send(kind, text)
        lost = monitor.wait_for_loss(0)
    assert lost is not None
    assert lost.rank == 4


def test_a_driver_that_gives_up_has_its_workers_killed() -> None:
    with suppress(KeyError), HeartbeatMonitor(LOOPBACK, 60) as monitor:
        sender = Sender(monitor, 0)
        sender.send(BEAT)
        assert eventually(lambda: 0 in monitor._heard)
        raise KeyError
    sender.socket.settimeout(10)
    assert sender.socket.recv(100) == kill_command(sender.key)


def test_a_driver_that_is_done_kills_nobody() -> None:
    with HeartbeatMonitor(LOOPBACK, 60) as monitor:
        sender = Sender(monitor, 0)
        sender.send(BEAT)
        assert eventually(lambda: 0 in monitor._heard)
    assert is_closed(sender.socket)


def test_strangers_are_refused_and_forged_frames_too() -> None:
    with HeartbeatMonitor(LOOPBACK, 60) as monitor:
        stranger = Sender(monitor, 0, secret=bytes(32))
        assert is_closed(stranger.socket)
        known = Sender(monitor, 1)
        known.send(BEAT)
        known.frames = 0  # said before
        known.send(STUCK, b"T 25 ")
        assert is_closed(known.socket)
        giant = Sender(monitor, 2)
        giant.send(BEAT)
        giant.socket.sendall(LENGTH.pack(60_000))
        assert is_closed(giant.socket)
        assert monitor.lost is None


def test_many_silent_strangers_keep_nobody_out() -> None:
    with HeartbeatMonitor(LOOPBACK, 60) as monitor:
        place = LOOPBACK, monitor.address.port
        silent = [socket.create_connection(place, 10) for _ in range(3 * _MOST_STRANGERS)]
        sender = Sender(monitor, 5)
        sender.send(BEAT)
        assert eventually(lambda: 5 in monitor._heard)
        assert eventually(lambda: len(monitor._connections) <= _MOST_STRANGERS + 1)
        for one in silent:
            one.close()


def test_a_driver_that_was_asleep_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = [0.0]
    monkeypatch.setattr(
        "farandole.engines.heartbeat_monitor.clock", lambda: time.monotonic() + asleep[0]
    )
    with HeartbeatMonitor(LOOPBACK, 6.0) as monitor:
        sender = Sender(monitor, 0)
        sender.send(BEAT)
        assert eventually(lambda: 0 in monitor._heard)
        asleep[0] = 3600.0  # the lid was closed
        assert monitor.wait_for_loss(2.5) is None
        sender.send(BEAT)


def test_what_is_said_of_a_stuck_worker() -> None:
    assert describe_stuck(b"T 25 ") == "its process has been stopped (SIGSTOP) for 25 s"
    assert "by a debugger" in describe_stuck(b"t 25 ")
    assert "network drive" in describe_stuck(b"D 25 ")
    stack = b'Current thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n'
    assert describe_stuck(b"S 25 " + stack).endswith('call first):\n  File "a.py", line 3 in f')
    assert describe_stuck(b"").startswith("its interpreter has been locked for long")


def test_what_is_said_of_a_death() -> None:
    assert "segmentation fault" in describe_death(b"139 - ")  # with a core dump
    assert "exit code 7" in describe_death(b"1792 - ")
    assert "no lack of memory" in describe_death(b"9 - ")
    assert "for lack of memory" in describe_death(b"9 m ")
    assert "for lack of memory" in describe_death(b"? m ")
    crash = b'? - Fatal Python error: Segmentation fault\n\n  File "a.py", line 3 in f\n'
    assert "segmentation fault (SIGSEGV)" in describe_death(crash)
    assert describe_death(crash).endswith('File "a.py", line 3 in f')
    assert "killed (SIGKILL), or left by os._exit()" in describe_death(b"? - ")
    assert BEATS * 5 == 30  # a beat every 5 s by default
