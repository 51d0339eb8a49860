from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest

from farandole.engines.channel import Channel, connect
from farandole.engines.driver_link import Address, DriverEndpoint, DriverLink
from farandole.engines.output import Output
from farandole.engines.pickled import Pickled
from farandole.errors import InputError

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


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def connected(address: Address) -> Channel:
    """Give a worker's channel without the rest of a worker."""
    place = address.host, address.port
    return connect(place, address.credentials, b"driver link", timeout=60, limit=1 << 20)


def closed_port() -> int:
    with closing(socket.create_server((LOOPBACK, 0))) as server:
        return int(server.getsockname()[1])


def test_messages_of_several_workers_arrive_each_in_its_order() -> None:
    heard = Heard()
    with DriverEndpoint(LOOPBACK, heard) as endpoint:
        links = [DriverLink(rank, endpoint.address) for rank in range(3)]
        for number in range(100):
            for link in links:
                link.tell(number)
        for link in links:
            link.close()
    for rank in range(3):
        assert [m for r, m in heard.messages if r == rank] == list(range(100))


def test_nothing_stays_open() -> None:
    threads = set(threading.enumerate())
    with DriverEndpoint(LOOPBACK, Heard()) as endpoint:
        link = DriverLink(0, endpoint.address)
        link.tell("hello")
        link.close()
    assert set(threading.enumerate()) <= threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((endpoint.address.host, endpoint.address.port), 1)


def test_a_question_is_answered_whatever_happens() -> None:
    def answer(rank: int, message: Any) -> Any:
        return Unpicklable() if message == "unpicklable" else (rank, message)

    with DriverEndpoint(LOOPBACK, answer) as endpoint:
        link = DriverLink(3, endpoint.address)
        assert link.ask("hello") == (3, "hello")
        assert link.ask("unpicklable") is None
        assert isinstance(endpoint.error, InputError)
        with pytest.raises(ConnectionError):
            link.ask(Unpicklable())
        assert link.ask("again") == (3, "again")
        link.close()
    nobody = DriverLink(0, None)
    with pytest.raises(ConnectionError, match="can't be reached"):
        nobody.ask("hello")
    nobody.close()


def test_a_message_that_does_not_pickle_costs_only_itself() -> None:
    heard = Heard()
    with DriverEndpoint(LOOPBACK, heard) as endpoint:
        link = DriverLink(0, endpoint.address)
        for message in ("before", Unpicklable(), local_class()(), "after"):
            link.tell(message)
        link.close()
    assert heard.messages == [(0, "before"), (0, local_class()()), (0, "after")]


def test_a_message_of_an_unknown_class_costs_only_itself() -> None:
    heard = Heard()
    with DriverEndpoint(LOOPBACK, heard) as endpoint:
        link = connected(endpoint.address)
        link.send(b"cno_such_module\nThing\n.")
        link.send(pickle.dumps((1, "after")))
        link.close()
    assert heard.messages == [(1, "after")]


def test_an_error_of_the_handler_is_kept_and_the_link_goes_on() -> None:
    seen: list[object] = []

    def handler(rank: int, message: object) -> None:
        seen.append(message)
        raise KeyError(message)

    with DriverEndpoint(LOOPBACK, handler) as endpoint:
        link = DriverLink(0, endpoint.address)
        link.tell("one")
        link.tell("two")
        link.close()
    assert seen == ["one", "two"]
    assert isinstance(endpoint.error, KeyError)
    assert endpoint.error.args == ("one",)


def test_a_stop_reaches_workers_that_are_there_and_that_come_later() -> None:
    with DriverEndpoint(LOOPBACK, Heard()) as endpoint:
        early = DriverLink(0, endpoint.address)
        assert eventually(lambda: endpoint.connected == 1)
        assert not early.stop_requested()
        endpoint.request_stop()
        late = DriverLink(1, endpoint.address)
        assert eventually(early.stop_requested)
        assert eventually(late.stop_requested)
        early.close()
        late.close()


def test_a_driver_that_gives_up_ends_its_workers() -> None:
    aborted = threading.Event()
    with suppress(KeyError), DriverEndpoint(LOOPBACK, Heard()) as endpoint:
        link = DriverLink(0, endpoint.address, on_abort=aborted.set)
        assert eventually(lambda: endpoint.connected == 1)
        raise KeyError
    assert aborted.wait(60)
    link.close()


def test_a_driver_that_is_done_lets_its_workers_be() -> None:
    aborted = threading.Event()
    with DriverEndpoint(LOOPBACK, Heard()) as endpoint:
        link = DriverLink(0, endpoint.address, on_abort=aborted.set)
        link.close()
    assert not aborted.wait(0.2)


def test_strangers_are_not_heard_and_hold_nobody_up() -> None:
    heard = Heard()
    with DriverEndpoint(LOOPBACK, heard) as endpoint:
        place = endpoint.address.host, endpoint.address.port
        silent = socket.create_connection(place, 5)  # says nothing, for as long as it likes
        wrong = DriverLink(7, Address(*place, b"a secret of another run"))
        wrong.tell("let me in")
        link = DriverLink(0, endpoint.address)
        link.tell("hello")
        link.close()
        wrong.close()
        assert eventually(lambda: heard.messages == [(0, "hello")])
        assert endpoint.connected == 1
        silent.close()
    assert heard.messages == [(0, "hello")]


def test_a_worker_that_can_not_reach_the_driver_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    link = DriverLink(3, Address(LOOPBACK, closed_port(), b"16 bytes or more!"))
    link.tell(Output("stdout", "printed here"))
    link.tell("an event")
    link.close()
    assert not link.stop_requested()
    assert time.monotonic() - start < 30
    assert capfd.readouterr().err == "[rank 3] printed here\n"  # its own log has it


def test_a_driver_that_leaves_early_does_not_disturb_the_worker() -> None:
    with DriverEndpoint(LOOPBACK, Heard()) as endpoint:
        link = DriverLink(0, endpoint.address)
        assert eventually(lambda: endpoint.connected == 1)
    for number in range(100):
        link.tell(number)
    link.close()
    assert not link.stop_requested()


def test_after_closing_nothing_piles_up() -> None:
    with DriverEndpoint(LOOPBACK, Heard()) as endpoint:
        link = DriverLink(0, endpoint.address)
        link.close()
        link.tell("too late")
        assert link._queue.empty()


@pytest.mark.parametrize("encrypt", [False, True])
def test_what_is_large_goes_both_ways_in_parts(encrypt: bool) -> None:
    weights = np.arange(5_000_000, dtype=np.int64)  # 40 MB: three parts
    task = Pickled.of({"weights": weights})
    with DriverEndpoint(LOOPBACK, Heard(), encrypt=encrypt, task=task) as endpoint:
        link = DriverLink(1, endpoint.address)
        fetched = link.fetch_task()
        assert fetched is not None
        received = fetched.load()["weights"]
        assert np.array_equal(received, weights)
        received += 1  # its memory is the worker's own
        assert link.deliver(Pickled.of(received))
        home = endpoint.payload_of(1)
        assert home is not None
        assert np.array_equal(home.load(), weights + 1)
        assert endpoint.payload_of(0) is None
        link.close()


def test_what_is_large_waits_for_no_driver_that_can_not_be_reached() -> None:
    link = DriverLink(0, Address(LOOPBACK, closed_port(), b"16 bytes or more!"))
    assert link.fetch_task() is None
    assert not link.deliver(Pickled.of("weights"))
    link.close()


def test_what_is_large_waits_for_no_driver_that_has_gone() -> None:
    with DriverEndpoint(LOOPBACK, Heard()) as endpoint:
        link = DriverLink(0, endpoint.address)
        assert eventually(lambda: endpoint.connected == 1)
    assert link.fetch_task() is None
    assert not link.deliver(Pickled.of("weights"))
    link.close()
