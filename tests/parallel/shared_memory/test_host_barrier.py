from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from farandole.errors import PeerLost
from farandole.parallel.shared_memory.host_barrier import HostBarrier


@pytest.fixture
def pair() -> Iterator[tuple[HostBarrier, HostBarrier]]:
    """Ranks 2 and 5, with little patience."""
    one, two = socket.socketpair()
    barriers = HostBarrier(2, {5: one}, timeout=0.2), HostBarrier(5, {2: two}, timeout=0.2)
    yield barriers
    for barrier in barriers:
        barrier.close()


def test_who_is_who(pair: tuple[HostBarrier, HostBarrier]) -> None:
    assert [barrier.leader for barrier in pair] == [2, 2]
    assert [barrier.position for barrier in pair] == [0, 1]


def test_nobody_leaves_a_meeting_before_all_have_come(
    pair: tuple[HostBarrier, HostBarrier],
) -> None:
    order = []

    def other() -> None:
        pair[1].wait()
        order.append("left")

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.05)
    order.append("comes")
    pair[0].wait()
    thread.join(5)
    assert order == ["comes", "left"]


def test_signals_are_counted_not_only_seen(pair: tuple[HostBarrier, HostBarrier]) -> None:
    pair[0].signal()
    pair[0].signal()
    pair[1].wait_for([2])
    pair[1].wait_for([2])
    with pytest.raises(PeerLost):
        pair[1].wait_for([2])


def test_who_does_not_come_is_named_with_the_time(pair: tuple[HostBarrier, HostBarrier]) -> None:
    with pytest.raises(PeerLost, match=r"rank 5 did not come along within 0\.2 s") as caught:
        pair[0].wait()
    assert (caught.value.ranks, caught.value.seconds) == ((5,), 0.2)


def test_who_has_gone_is_named_at_once(pair: tuple[HostBarrier, HostBarrier]) -> None:
    pair[1].signal()
    pair[1].close()
    pair[0].wait_for([5])  # what it said before still counts
    with pytest.raises(PeerLost, match="rank 5 left") as caught:
        pair[0].wait_for([5])
    assert caught.value.seconds is None
    with pytest.raises(PeerLost, match="rank 5 left"):
        pair[0].signal()


def test_one_that_has_gone_is_noticed_while_another_is_late() -> None:
    late, gone = socket.socketpair(), socket.socketpair()
    barrier = HostBarrier(0, {1: late[0], 2: gone[0]}, timeout=30)
    threading.Timer(0.05, gone[1].close).start()
    with pytest.raises(PeerLost, match="rank 2 left"):
        barrier.wait()
    barrier.close()
    late[1].close()


def test_a_file_comes_with_a_note_and_stays_private(pair: tuple[HostBarrier, HostBarrier]) -> None:
    reading, writing = os.pipe()
    pair[0].send_file(writing, b"note")
    os.close(writing)
    descriptor, note = pair[1].receive_file(4)
    assert note == b"note"
    assert not os.get_inheritable(descriptor)
    os.write(descriptor, b"through")
    assert os.read(reading, 7) == b"through"
    os.close(descriptor)
    os.close(reading)
    pair[0].close()
    with pytest.raises(PeerLost, match="rank 2 left"):
        pair[1].receive_file(4)
