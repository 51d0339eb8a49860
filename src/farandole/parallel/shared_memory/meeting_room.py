"""MeetingRoom: where the workers of one host find each other, and become a circle.

Every worker opens a room and tells all others through torch.distributed how to get there. Those of
a host go to the one of its lowest rank, which then connects them with each other as well.
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
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from farandole.errors import PeerLost
from farandole.parallel.shared_memory.circle import take_file

_CARD = struct.Struct("!16sq")  # the secret, and the visitor's rank
_MOST_VISITORS = 1024


@dataclass(frozen=True)
class Invitation:
    """Where to go, and what to say there."""

    address: str
    secret: bytes


class MeetingRoom:
    """A Unix socket that one worker listens on.

    On Linux it is an abstract one: it has no file, and vanishes with its process. Others can read
    its name in /proc, hence the secret, and a look at whose process it is that knocks.
    """

    def __init__(self) -> None:
        self._folder = None if sys.platform == "linux" else tempfile.TemporaryDirectory()
        name = f"farandole-{secrets.token_hex(16)}"
        address = f"\0{name}" if self._folder is None else str(Path(self._folder.name) / "room")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(_MOST_VISITORS)
        self.invitation = Invitation(address, secrets.token_bytes(16))

    def admit(self, ranks: Sequence[int], timeout: float) -> dict[int, socket.socket]:
        """Connections to these ranks, which have all knocked."""
        self._listener.settimeout(timeout)
        found: dict[int, socket.socket] = {}
        while len(found) < len(ranks):
            visitor, _ = self._listener.accept()
            rank = self._rank_of(visitor, timeout)
            if rank is not None and rank in ranks and rank not in found:
                found[rank] = visitor
            else:
                visitor.close()
        return found

    def close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _rank_of(self, visitor: socket.socket, timeout: float) -> int | None:
        """Whom the visitor says to be; None for a stranger."""
        if not _has_same_user(visitor):
            return None
        visitor.settimeout(timeout)
        with suppress(OSError, struct.error):
            secret, rank = _CARD.unpack(visitor.recv(_CARD.size, socket.MSG_WAITALL))
            if hmac.compare_digest(secret, self.invitation.secret):
                return int(rank)
        return None


def knock(invitation: Invitation, rank: int, timeout: float) -> socket.socket:
    """Go to a room; comes back before anybody has opened."""
    visit = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        visit.settimeout(timeout)
        visit.connect(invitation.address)
        visit.sendall(_CARD.pack(invitation.secret, rank))
    except OSError:
        visit.close()
        raise
    return visit


def introduce(visitors: dict[int, socket.socket]) -> None:
    """Connect all visitors of a room with each other."""
    for first, second in combinations(sorted(visitors), 2):
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for rank, end in zip((first, second), ends, strict=True):
            with end:
                socket.send_fds(visitors[rank], [b"+"], [end.fileno()])


def meet_others(
    host: socket.socket, leader: int, others: Sequence[int]
) -> dict[int, socket.socket]:
    """A visitor's connections: to the leader of its host, and to all that it is introduced to."""
    found = {leader: host}
    try:
        for rank in sorted(others):
            found[rank] = socket.socket(fileno=take_file(host, leader, 1)[0])
    except (OSError, PeerLost):
        for connection in found.values():
            connection.close()
        raise
    return found


def _has_same_user(visitor: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # it could open a folder that nobody else can
    credentials = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user == os.geteuid()
