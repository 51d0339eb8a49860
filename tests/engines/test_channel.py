from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Client

import pytest

from farandole.engines.channel import Address, Inbox, Outbox, Output

LOOPBACK = "127.0.0.1"


class Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("not me")


def local_class() -> type:
    """Give a class that pickle can't import, as a notebook's."""

    class Local:
        def __eq__(self, other: object) -> bool:
            return type(other).__name__ == "Local"

    return Local


class Heard:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, object]] = []

    def __call__(self, rank: int, message: object) -> None:
        self.messages.append((rank, message))


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def closed_port() -> int:
    with closing(socket.create_server((LOOPBACK, 0))) as server:
        return int(server.getsockname()[1])


def test_messages_of_several_workers_arrive_each_in_its_order() -> None:
    heard = Heard()
    with Inbox(LOOPBACK, heard) as inbox:
        boxes = [Outbox(rank, inbox.address) for rank in range(3)]
        for number in range(100):
            for box in boxes:
                box.tell(number)
        for box in boxes:
            box.close()
    for rank in range(3):
        assert [m for r, m in heard.messages if r == rank] == list(range(100))


def test_nothing_stays_open() -> None:
    threads = set(threading.enumerate())
    with Inbox(LOOPBACK, Heard()) as inbox:
        box = Outbox(0, inbox.address)
        box.tell("hello")
        box.close()
    assert set(threading.enumerate()) == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((inbox.address.host, inbox.address.port), 1)


def test_a_message_that_does_not_pickle_costs_only_itself() -> None:
    heard = Heard()
    with Inbox(LOOPBACK, heard) as inbox:
        box = Outbox(0, inbox.address)
        for message in ("before", Unpicklable(), local_class()(), "after"):
            box.tell(message)
        box.close()
    assert heard.messages == [(0, "before"), (0, local_class()()), (0, "after")]


def test_a_message_of_an_unknown_class_costs_only_itself() -> None:
    heard = Heard()
    with Inbox(LOOPBACK, heard) as inbox:
        secret = inbox.address.secret
        with Client((inbox.address.host, inbox.address.port), authkey=secret) as line:
            line.send_bytes(b"cno_such_module\nThing\n.")
            line.send_bytes(pickle.dumps((1, "after")))
    assert heard.messages == [(1, "after")]


def test_an_error_of_the_handler_is_kept_and_the_line_goes_on() -> None:
    seen: list[object] = []

    def handler(rank: int, message: object) -> None:
        seen.append(message)
        raise KeyError(message)

    with Inbox(LOOPBACK, handler) as inbox:
        box = Outbox(0, inbox.address)
        box.tell("one")
        box.tell("two")
        box.close()
    assert seen == ["one", "two"]
    assert isinstance(inbox.error, KeyError)
    assert inbox.error.args == ("one",)


def test_a_stop_reaches_workers_that_are_there_and_that_come_later() -> None:
    with Inbox(LOOPBACK, Heard()) as inbox:
        early = Outbox(0, inbox.address)
        assert eventually(lambda: inbox.connected == 1)
        assert not early.stop_requested()
        inbox.request_stop()
        late = Outbox(1, inbox.address)
        assert eventually(early.stop_requested)
        assert eventually(late.stop_requested)
        early.close()
        late.close()


def test_a_driver_that_gives_up_ends_its_workers() -> None:
    left = threading.Event()
    with suppress(KeyError), Inbox(LOOPBACK, Heard()) as inbox:
        box = Outbox(0, inbox.address, leave=left.set)
        assert eventually(lambda: inbox.connected == 1)
        raise KeyError
    assert left.wait(5)
    box.close()


def test_a_driver_that_is_done_lets_its_workers_be() -> None:
    left = threading.Event()
    with Inbox(LOOPBACK, Heard()) as inbox:
        box = Outbox(0, inbox.address, leave=left.set)
        box.close()
    assert not left.wait(0.2)


def test_strangers_are_not_heard_and_hold_nobody_up() -> None:
    heard = Heard()
    with Inbox(LOOPBACK, heard) as inbox:
        place = inbox.address.host, inbox.address.port
        silent = socket.create_connection(place, 5)  # says nothing, for as long as it likes
        wrong = Outbox(7, Address(*place, b"wrong secret"))
        wrong.tell("let me in")
        box = Outbox(0, inbox.address)
        box.tell("hello")
        box.close()
        wrong.close()
        assert eventually(lambda: heard.messages == [(0, "hello")])
        assert inbox.connected == 1
        silent.close()
    assert heard.messages == [(0, "hello")]


def test_a_worker_that_can_not_reach_the_driver_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    box = Outbox(3, Address(LOOPBACK, closed_port(), b"secret"))
    box.tell(Output("stdout", "printed here"))
    box.tell("an event")
    box.close()
    assert not box.stop_requested()
    assert time.monotonic() - start < 3
    assert capfd.readouterr().err == "[rank 3] printed here\n"  # its own log has it


def test_a_driver_that_leaves_early_does_not_disturb_the_worker() -> None:
    with Inbox(LOOPBACK, Heard()) as inbox:
        box = Outbox(0, inbox.address)
        assert eventually(lambda: inbox.connected == 1)
    for number in range(100):
        box.tell(number)
    box.close()
    assert not box.stop_requested()


def test_after_closing_nothing_piles_up() -> None:
    with Inbox(LOOPBACK, Heard()) as inbox:
        box = Outbox(0, inbox.address)
        box.close()
        box.tell("too late")
        assert box._queue.empty()
