"""Host rendezvous: how the workers of one host find each other, and connect.

Every worker listens on a Unix socket and tells all others its address through torch.distributed.
Those of a host connect to the one of its lowest rank, which then connects them with each other.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from pathlib import Path

import torch
import torch.distributed as dist

from farandole.errors import PeerLost
from farandole.parallel.objects import gather_objects
from farandole.parallel.shared_memory.host_barrier import HostBarrier, receive_file
from farandole.parallel.shared_memory.summation import SharedMemorySummation
from farandole.world import World

_HELLO = struct.Struct("!16sq")  # the secret, and the rank of who connects
_BACKLOG = 1024
_MOST_SECONDS = 30.0
"""The workers have just met over the network: what takes longer than this won't work at all."""


def join_host(world: World) -> SharedMemorySummation | None:
    """A sum through shared memory; None on all workers if one of them can't.

    All workers have to call this. Those of the same address are on one host.
    """
    listener = _listen()
    mine = None if listener is None else listener.address
    addresses: list[ListenerAddress | None] = gather_objects(mine, world)
    if listener is None:
        return None
    with closing(listener):
        if not all(addresses):
            return None
        peers = _connect(world, listener, addresses)
    # All have to agree before one goes on, so that no worker goes on alone.
    if not _all_agree(peers is not None) or peers is None:
        _close(peers)
        return None
    return _tested(world, HostBarrier(world.rank, peers, world.timeout))


def _listen() -> HostListener | None:
    if not (hasattr(socket, "AF_UNIX") and hasattr(socket, "send_fds")):
        return None
    try:
        return HostListener()
    except OSError:
        return None


def _connect(
    world: World, listener: HostListener, addresses: Sequence[ListenerAddress | None]
) -> dict[int, socket.socket] | None:
    """Connections to the other workers of this host; None if that fails."""
    ranks = _ranks_of_host(world)
    leader, others = ranks[0], [rank for rank in ranks[1:] if rank != world.rank]
    timeout = min(world.timeout, _MOST_SECONDS)
    to_leader = None
    if world.rank != leader:
        to_leader = _connect_to(addresses[leader], world.rank, timeout)
    # All are connected before a leader accepts: it never waits for one who won't come.
    if not _all_agree(world.rank == leader or to_leader is not None):
        _close({} if to_leader is None else {leader: to_leader})
        return None
    peers: dict[int, socket.socket] = {}
    try:
        if to_leader is not None:
            return receive_connections(to_leader, leader, others)
        peers = listener.accept(others, timeout)
        connect_pairs(peers)
    except (OSError, PeerLost):
        _close(peers)
        return None
    return peers


def _tested(world: World, barrier: HostBarrier) -> SharedMemorySummation | None:
    """A summation that has been seen to work; None if it doesn't."""
    leaders = [world.addresses.index(address) for address in dict.fromkeys(world.addresses)]
    group = None
    if len(leaders) > 1:
        made = dist.new_group(leaders, timeout=timedelta(seconds=world.timeout))
        group = made if world.rank in leaders else None
    summation = SharedMemorySummation(barrier, len(leaders), group)
    values = torch.ones(1)
    try:
        summation.sum_(values)
    except (OSError, RuntimeError, ValueError):
        values.zero_()
        summation.close()  # so that no worker waits for this one
    if _all_agree(values.item() == world.size):
        return summation
    summation.close()
    return None


def _ranks_of_host(world: World) -> list[int]:
    mine = world.addresses[world.rank]
    return [rank for rank, address in enumerate(world.addresses) if address == mine]


def _connect_to(address: ListenerAddress | None, rank: int, timeout: float) -> socket.socket | None:
    assert address is not None
    try:
        return connect(address, rank, timeout)
    except OSError:
        return None


def _all_agree(mine: bool) -> bool:
    votes = torch.tensor([float(mine)])
    dist.all_reduce(votes, dist.ReduceOp.MIN)
    return bool(votes.item())


def _close(peers: dict[int, socket.socket] | None) -> None:
    for peer in (peers or {}).values():
        peer.close()


@dataclass(frozen=True)
class ListenerAddress:
    """Where a worker listens, and the secret that it asks for."""

    path: str
    secret: bytes = field(repr=False)


class HostListener:
    """A Unix socket that one worker listens on.

    On Linux it is an abstract one: it has no file, and vanishes with its process. Others can read
    its name in /proc, hence the secret, and a look at whose process it is that connects.
    """

    def __init__(self) -> None:
        self._folder = None if sys.platform == "linux" else tempfile.TemporaryDirectory()
        name = f"farandole-{secrets.token_hex(16)}"
        path = f"\0{name}" if self._folder is None else str(Path(self._folder.name) / "socket")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(_BACKLOG)
        self.address = ListenerAddress(path, secrets.token_bytes(16))

    def accept(self, ranks: Sequence[int], timeout: float) -> dict[int, socket.socket]:
        """Connections to these ranks, which have all connected."""
        self._listener.settimeout(timeout)
        found: dict[int, socket.socket] = {}
        while len(found) < len(ranks):
            peer, _ = self._listener.accept()
            rank = self._rank_of(peer, timeout)
            if rank is not None and rank in ranks and rank not in found:
                found[rank] = peer
            else:
                peer.close()
        return found

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _rank_of(self, peer: socket.socket, timeout: float) -> int | None:
        """The rank that a peer says it has; None if it doesn't know the secret."""
        if not _has_same_user(peer):
            return None
        peer.settimeout(timeout)
        with suppress(OSError, struct.error):
            secret, rank = _HELLO.unpack(peer.recv(_HELLO.size, socket.MSG_WAITALL))
            if hmac.compare_digest(secret, self.address.secret):
                return int(rank)
        return None


def connect(address: ListenerAddress, rank: int, timeout: float) -> socket.socket:
    """Connect to a listener; returns before it has accepted."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(address.path)
        connection.sendall(_HELLO.pack(address.secret, rank))
    except OSError:
        connection.close()
        raise
    return connection


def connect_pairs(peers: dict[int, socket.socket]) -> None:
    """Connect all who have connected to a leader with each other."""
    for first, second in combinations(sorted(peers), 2):
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for rank, end in zip((first, second), ends, strict=True):
            with end:
                socket.send_fds(peers[rank], [b"+"], [end.fileno()])


def receive_connections(
    to_leader: socket.socket, leader: int, others: Sequence[int]
) -> dict[int, socket.socket]:
    """Connections to the leader of a host, and to the others, which come from the leader."""
    found = {leader: to_leader}
    try:
        for rank in sorted(others):
            found[rank] = socket.socket(fileno=receive_file(to_leader, leader, 1)[0])
    except (OSError, PeerLost):
        for connection in found.values():
            connection.close()
        raise
    return found


def _has_same_user(peer: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # it could open a folder that no other worker can
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user == os.geteuid()
