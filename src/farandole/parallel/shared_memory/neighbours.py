"""Neighbours: how the workers of a ring find out who shares a host, and join in shared memory."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta

import torch
import torch.distributed as dist

from farandole.errors import PeerLost
from farandole.parallel.shared_memory.circle import Circle
from farandole.parallel.shared_memory.meeting_room import (
    Invitation,
    MeetingRoom,
    introduce,
    knock,
    meet_others,
)
from farandole.parallel.shared_memory.summation import SharedMemory
from farandole.world import World

_MOST_SECONDS = 30.0
"""Neighbours have just met over the network: what takes longer than this won't work at all."""


def join(world: World) -> SharedMemory | None:
    """A sum through shared memory; None on all workers if one of them can't.

    All workers of the ring have to call this. Those of the same address are neighbours.
    """
    room = _open_room()
    invitations: list[Invitation | None] = [None] * world.size
    dist.all_gather_object(invitations, None if room is None else room.invitation)
    if room is None:
        return None
    with closing(room):
        if not all(invitations):
            return None
        peers = _connect(world, room, invitations)
    # Everybody asks for everybody's leave before going on, so that nobody goes on alone.
    if not _all_agree(peers is not None) or peers is None:
        _close(peers)
        return None
    return _tried(world, Circle(world.rank, peers, world.timeout))


def _open_room() -> MeetingRoom | None:
    if not (hasattr(socket, "AF_UNIX") and hasattr(socket, "send_fds")):
        return None
    try:
        return MeetingRoom()
    except OSError:
        return None


def _connect(
    world: World, room: MeetingRoom, invitations: Sequence[Invitation | None]
) -> dict[int, socket.socket] | None:
    """Connections to the other workers of this host; None if that fails."""
    here = _neighbours(world)
    leader, others = here[0], [rank for rank in here[1:] if rank != world.rank]
    timeout = min(world.timeout, _MOST_SECONDS)
    visit = None if world.rank == leader else _visit(invitations[leader], world.rank, timeout)
    # All have knocked before a leader opens: it never waits for one who won't come.
    if not _all_agree(world.rank == leader or visit is not None):
        _close({} if visit is None else {leader: visit})
        return None
    peers: dict[int, socket.socket] = {}
    try:
        if visit is not None:
            return meet_others(visit, leader, others)
        peers = room.admit(others, timeout)
        introduce(peers)
    except (OSError, PeerLost):
        _close(peers)
        return None
    return peers


def _tried(world: World, circle: Circle) -> SharedMemory | None:
    """A summation that has been seen to work."""
    leaders = [world.addresses.index(address) for address in dict.fromkeys(world.addresses)]
    group = None
    if len(leaders) > 1:
        made = dist.new_group(leaders, timeout=timedelta(seconds=world.timeout))
        group = made if world.rank in leaders else None
    summation = SharedMemory(circle, len(leaders), group)
    values = torch.ones(1)
    try:
        summation.sum_(values)
    except (OSError, RuntimeError, ValueError):
        values.zero_()
        summation.close()  # so that nobody waits for this one
    if _all_agree(values.item() == world.size):
        return summation
    summation.close()
    return None


def _neighbours(world: World) -> list[int]:
    mine = world.addresses[world.rank]
    return [rank for rank, address in enumerate(world.addresses) if address == mine]


def _visit(invitation: Invitation | None, rank: int, timeout: float) -> socket.socket | None:
    assert invitation is not None
    try:
        return knock(invitation, rank, timeout)
    except OSError:
        return None


def _all_agree(mine: bool) -> bool:
    votes = torch.tensor([float(mine)])
    dist.all_reduce(votes, dist.ReduceOp.MIN)
    return bool(votes.item())


def _close(peers: dict[int, socket.socket] | None) -> None:
    for peer in (peers or {}).values():
        peer.close()
