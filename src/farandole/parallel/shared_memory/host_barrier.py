"""HostBarrier: the workers of one host wait for each other, over Unix sockets.

A worker that has come to the barrier sends one byte to each other one. It goes through the
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
from farandole.system_resources import usable_cores

_SIGNAL = b"."
_SPIN_SECONDS = 100e-6
"""To be woken takes about as long: until then, it is better to stay awake, if there is a core."""
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class HostBarrier:
    """A barrier of the workers of one host. It passes open files, too."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket], timeout: float) -> None:
        self.rank = rank
        self.ranks = sorted([rank, *peers])
        self._peers = dict(peers)
        self._timeout = timeout
        for peer in self._peers.values():
            peer.setblocking(False)
        has_core = len(self.ranks) <= usable_cores()
        self._spin_seconds = _SPIN_SECONDS if has_core else 0.0

    @property
    def leader(self) -> int:
        """The rank that joins this host with others."""
        return self.ranks[0]

    @property
    def position(self) -> int:
        """Which of the host's workers this is."""
        return self.ranks.index(self.rank)

    def wait(self) -> None:
        """Return as soon as all have called this, each as often as this one has."""
        self.signal()
        self.wait_for(self._peers)

    def signal(self) -> None:
        """Tell all others that this one has come."""
        for rank, peer in self._peers.items():
            try:
                peer.send(_SIGNAL)
            except OSError as error:  # never for a lack of space: two bytes at most are on the way
                raise PeerLost([rank]) from error

    def wait_for(self, ranks: Iterable[int], extra_seconds: float = 0.0) -> None:
        """Wait for a signal of each of these, so many seconds beyond the time-out."""
        missing = {rank: self._peers[rank] for rank in ranks}
        _drop_signalled(missing)
        spin_until = time.perf_counter() + self._spin_seconds
        while missing and time.perf_counter() < spin_until:
            os.sched_yield()  # if anything else wants this core, it may have it
            _drop_signalled(missing)
        deadline = time.monotonic() + self._timeout + extra_seconds
        while missing:
            self._sleep(missing, deadline)
            _drop_signalled(missing)

    def send_file(self, descriptor: int, note: bytes) -> None:
        """Share an open file with all others."""
        for rank, peer in self._peers.items():
            try:
                socket.send_fds(peer, [note], [descriptor])
            except OSError as error:
                raise PeerLost([rank]) from error

    def receive_file(self, length: int) -> tuple[int, bytes]:
        """The file that the leader shares, and the note of so many bytes that came with it."""
        peer = self._peers[self.leader]
        self._sleep({self.leader: peer}, time.monotonic() + self._timeout)
        return receive_file(peer, self.leader, length)

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers.values():
            peer.close()

    def _sleep(self, missing: Mapping[int, socket.socket], deadline: float) -> None:
        """Leave the core to others until one of these has sent something, or has gone."""
        poll = select.poll()
        for peer in missing.values():
            poll.register(peer, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise PeerLost(sorted(missing), self._timeout)


def receive_file(peer: socket.socket, rank: int, length: int) -> tuple[int, bytes]:
    """The file that comes over a connection, and the note with it."""
    try:
        note, descriptors, _, _ = socket.recv_fds(peer, length, 1, _CLOSE_ON_EXEC)
    except ConnectionError as error:
        raise PeerLost([rank]) from error
    if len(descriptors) != 1 or len(note) != length:
        raise PeerLost([rank])
    os.set_inheritable(descriptors[0], False)
    return descriptors[0], note


def _drop_signalled(missing: dict[int, socket.socket]) -> None:
    """Forget those that have given their signal; raises if one of them has gone."""
    gone = []
    for rank, peer in list(missing.items()):
        try:
            signal = peer.recv(1)
        except BlockingIOError:
            continue
        except ConnectionError:
            signal = b""
        if not signal:
            gone.append(rank)
        del missing[rank]
    if gone:
        raise PeerLost(gone)
