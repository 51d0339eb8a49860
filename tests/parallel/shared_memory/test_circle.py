from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from farandole.errors import PeerLost
from farandole.parallel.shared_memory.circle import Circle


@pytest.fixture
def pair() -> Iterator[tuple[Circle, Circle]]:
    """Ranks 2 and 5, with little patience."""
    one, two = socket.socketpair()
    circles = Circle(2, {5: one}, timeout=0.2), Circle(5, {2: two}, timeout=0.2)
    yield circles
    for circle in circles:
        circle.close()


def test_who_is_who(pair: tuple[Circle, Circle]) -> None:
    assert [circle.leader for circle in pair] == [2, 2]
    assert [circle.position for circle in pair] == [0, 1]


def test_nobody_leaves_a_meeting_before_all_have_come(pair: tuple[Circle, Circle]) -> None:
    order = []

    def other() -> None:
        pair[1].meet()
        order.append("left")

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.05)
    order.append("comes")
    pair[0].meet()
    thread.join(5)
    assert order == ["comes", "left"]


def test_signals_are_counted_not_only_seen(pair: tuple[Circle, Circle]) -> None:
    pair[0].tell()
    pair[0].tell()
    pair[1].hear([2])
    pair[1].hear([2])
    with pytest.raises(PeerLost):
        pair[1].hear([2])


def test_who_does_not_come_is_named_with_the_time(pair: tuple[Circle, Circle]) -> None:
    with pytest.raises(PeerLost, match=r"rank 5 did not come along within 0\.2 s") as caught:
        pair[0].meet()
    assert (caught.value.ranks, caught.value.seconds) == ((5,), 0.2)


def test_who_has_gone_is_named_at_once(pair: tuple[Circle, Circle]) -> None:
    pair[1].tell()
    pair[1].close()
    pair[0].hear([5])  # what it said before still counts
    with pytest.raises(PeerLost, match="rank 5 left") as caught:
        pair[0].hear([5])
    assert caught.value.seconds is None
    with pytest.raises(PeerLost, match="rank 5 left"):
        pair[0].tell()


def test_one_that_has_gone_is_noticed_while_another_is_late() -> None:
    late, gone = socket.socketpair(), socket.socketpair()
    circle = Circle(0, {1: late[0], 2: gone[0]}, timeout=30)
    threading.Timer(0.05, gone[1].close).start()
    with pytest.raises(PeerLost, match="rank 2 left"):
        circle.meet()
    circle.close()
    late[1].close()


def test_a_file_comes_with_a_note_and_stays_private(pair: tuple[Circle, Circle]) -> None:
    reading, writing = os.pipe()
    pair[0].give(writing, b"note")
    os.close(writing)
    descriptor, note = pair[1].take(4)
    assert note == b"note"
    assert not os.get_inheritable(descriptor)
    os.write(descriptor, b"through")
    assert os.read(reading, 7) == b"through"
    os.close(descriptor)
    os.close(reading)
    pair[0].close()
    with pytest.raises(PeerLost, match="rank 2 left"):
        pair[1].take(4)
