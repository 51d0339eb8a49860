"""Circle: the workers of one host, each connected with each other by a Unix socket.

What they tell each other is that they have come to some point: one byte. It goes through the
kernel, which orders memory: all that a worker has written before it sends is there for whoever
receives. A counter in shared memory, read and written from Python, would give no such promise on
processors that reorder stores.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable, Mapping

from farandole.errors import PeerLost

_SIGNAL = b"."
_WAKEFUL_SECONDS = 100e-6
"""To be woken takes about as long: until then, it is better to stay awake, if there is a core."""
_KEEP_PRIVATE = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Circle:
    """This worker's connections to the others of its host, by rank."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket], timeout: float) -> None:
        self.rank = rank
        self.ranks = sorted([rank, *peers])
        self._peers = dict(peers)
        self._timeout = timeout
        for peer in self._peers.values():
            peer.setblocking(False)
        has_core = len(self.ranks) <= len(_usable_cores())
        self._wakeful = _WAKEFUL_SECONDS if has_core else 0.0

    @property
    def leader(self) -> int:
        """The rank that joins this host with others."""
        return self.ranks[0]

    @property
    def position(self) -> int:
        """Which of the host's workers this is."""
        return self.ranks.index(self.rank)

    def meet(self) -> None:
        """Come back as soon as all have called this, each as often as this one has."""
        self.tell()
        self.hear(self._peers)

    def tell(self) -> None:
        """Give everybody a signal."""
        for rank, peer in self._peers.items():
            try:
                peer.send(_SIGNAL)
            except OSError as error:  # never for a lack of room: two bytes at most are on the way
                raise PeerLost([rank]) from error

    def hear(self, ranks: Iterable[int], patience: float = 0.0) -> None:
        """Wait for a signal of each of these, beyond the usual time by so many seconds."""
        missing = {rank: self._peers[rank] for rank in ranks}
        _drop_heard(missing)
        wakeful = time.perf_counter() + self._wakeful
        while missing and time.perf_counter() < wakeful:
            os.sched_yield()  # if anything else wants this core, it may have it
            _drop_heard(missing)
        deadline = time.monotonic() + self._timeout + patience
        while missing:
            self._sleep(missing, deadline)
            _drop_heard(missing)

    def give(self, descriptor: int, note: bytes) -> None:
        """Share an open file with everybody."""
        for rank, peer in self._peers.items():
            try:
                socket.send_fds(peer, [note], [descriptor])
            except OSError as error:
                raise PeerLost([rank]) from error

    def take(self, length: int) -> tuple[int, bytes]:
        """The file that the leader shares, and the note of so many bytes that came with it."""
        peer = self._peers[self.leader]
        self._sleep({self.leader: peer}, time.monotonic() + self._timeout)
        return take_file(peer, self.leader, length)

    def close(self) -> None:
        """Leave."""
        for peer in self._peers.values():
            peer.close()

    def _sleep(self, missing: Mapping[int, socket.socket], deadline: float) -> None:
        """Leave the core to others until one of these has something to say, or has gone."""
        poll = select.poll()
        for peer in missing.values():
            poll.register(peer, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise PeerLost(sorted(missing), self._timeout)


def take_file(peer: socket.socket, rank: int, length: int) -> tuple[int, bytes]:
    """The file that comes over a connection, and the note with it."""
    try:
        note, descriptors, _, _ = socket.recv_fds(peer, length, 1, _KEEP_PRIVATE)
    except ConnectionError as error:
        raise PeerLost([rank]) from error
    if len(descriptors) != 1 or len(note) != length:
        raise PeerLost([rank])
    os.set_inheritable(descriptors[0], False)
    return descriptors[0], note


def _drop_heard(missing: dict[int, socket.socket]) -> None:
    """Forget those that have given their signal; raises if one of them has gone."""
    gone = []
    for rank, peer in list(missing.items()):
        try:
            heard = peer.recv(1)
        except BlockingIOError:
            continue
        except ConnectionError:
            heard = b""
        if not heard:
            gone.append(rank)
        del missing[rank]
    if gone:
        raise PeerLost(gone)


def _usable_cores() -> set[int]:
    """Of this process: a container may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
