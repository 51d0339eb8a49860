"""SharedMemory: the sum over workers of one host through their memory, over hosts through gloo.

Small tensors of one host take the way of `SharedSlots`, with a single meeting. For all others, each
worker has its values where its neighbours can read them, and a sum takes these steps:

1. All meet: everybody's values are there.
2. Each adds up its share of all workers' values, into a place for sums.
3. All meet: the sum is complete. (With several hosts, their leaders then sum it over gloo, and
   give a signal when it is.)
4. Each copies the sum to its own values.

Why the next sum needs no meeting before it begins: between meetings 1 and 3 a worker reads others'
values, from meeting 3 on only the place for sums. So its values are its own again after meeting 3,
whatever the others are doing. And the place for sums is written only after the next meeting 1, to
which everybody comes with the last sum copied. Over hosts, the leader alone writes there, after
meeting 3 and before its signal, which all others wait for before they read.

Every share is added up by one worker in one order, so all workers have the same bits.
"""

from __future__ import annotations

import gc
import os
import struct
import time

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from farandole.errors import InputError
from farandole.parallel.shared_memory.area import SharedArea
from farandole.parallel.shared_memory.circle import Circle
from farandole.parallel.shared_memory.file import file_bytes, make_file, rows_of
from farandole.parallel.shared_memory.slots import SharedSlots, slot_bytes
from farandole.parallel.summation import Collective

_NOTE = struct.Struct("!q16s")  # size and dtype of what a file is for
_PATIENCE = 5.0
"""Seconds that a leader has to say why there is no sum, before others blame the leader."""


class SharedMemory:
    """A summation for CPUs; `neighbours.join` makes one.

    `sent` counts what goes to other hosts, which is the leaders' affair: what neighbours read in
    each other's memory isn't sent anywhere.

    Args:
        circle: the workers of this host.
        hosts: how many hosts there are.
        group: the leaders of all hosts; None on workers that aren't, and where one host is all.
    """

    def __init__(
        self, circle: Circle, hosts: int = 1, group: dist.ProcessGroup | None = None
    ) -> None:
        self._circle = circle
        self._hosts = hosts
        self._group = group
        self._leaders = Collective(hosts, group) if group is not None else None
        self._areas = WeakTensorKeyDictionary()
        self._slots: SharedSlots | None = None
        self._guests: dict[torch.dtype, SharedArea] = {}
        self._is_whole = True

    @property
    def sent(self) -> int:
        """Bytes that this worker has sent to other hosts so far."""
        return 0 if self._leaders is None else self._leaders.sent

    def buffer(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A flat tensor of zeros. All workers have to call this, in the same order."""
        if device.type != "cpu":
            raise InputError(f"Only CPUs share memory. Received: device={str(device)!r}")
        if self._is_small(size * dtype.itemsize):
            return torch.zeros(size, dtype=dtype)  # it is copied to a slot while it is in the cache
        area = self._make_area(size, dtype)
        flat = area.mine[:]
        self._areas[flat] = area
        return flat

    def sum_(self, flat: torch.Tensor) -> None:
        """Sum in place. Large tensors that aren't from `buffer` have to be copied in first."""
        self._is_whole = False
        if self._is_small(flat.nbytes):
            self._slots = self._slots or self._make_slots()
            self._slots.sum_(flat)
        else:
            self._sum_in_shares(flat)
        self._is_whole = True

    def close(self) -> None:
        """Leave the circle. Memory goes with the last tensor in it."""
        self._areas.clear()
        self._guests.clear()
        self._slots = None
        self._circle.close()
        group, self._group = self._group, None
        if self._leaders is not None:
            self._leaders.close()
        if group is not None and self._is_whole:
            # What could hold the group goes first, and gloo's threads get time to finish: see
            # `engines.rendezvous`. After a failure it stays, since its end might wait for a peer.
            gc.collect()
            time.sleep(0.01)
            dist.destroy_process_group(group)

    def _is_small(self, length: int) -> bool:
        return self._hosts == 1 and length <= slot_bytes(len(self._circle.ranks))

    def _make_slots(self) -> SharedSlots:
        workers = len(self._circle.ranks)
        rows = self._make_rows(2 * workers, slot_bytes(workers), torch.uint8)
        return SharedSlots(rows, self._circle)

    def _sum_in_shares(self, flat: torch.Tensor) -> None:
        area = self._areas.get(flat)
        if area is None:
            area = self._guest_area(flat)
            area.mine.copy_(flat.reshape(-1))
        self._circle.meet()
        area.add_up()
        self._circle.meet()
        if self._hosts > 1:
            self._sum_hosts(area.sum)
        flat.copy_(area.sum.view(flat.shape))

    def _sum_hosts(self, values: torch.Tensor) -> None:
        if self._leaders is not None:
            self._leaders.sum_(values)
            self._circle.tell()
        else:
            self._circle.hear([self._circle.leader], _PATIENCE)

    def _guest_area(self, flat: torch.Tensor) -> SharedArea:
        """A place for a tensor from elsewhere; large enough ones are used again."""
        found = self._guests.get(flat.dtype)
        if found is None or found.size < flat.numel():
            found = self._guests[flat.dtype] = self._make_area(flat.numel(), flat.dtype)
        return found.first(flat.numel())

    def _make_area(self, size: int, dtype: torch.dtype) -> SharedArea:
        rows = self._make_rows(len(self._circle.ranks) + 1, size, dtype)
        return SharedArea(rows, self._circle.position)

    def _make_rows(self, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory that the leader makes and hands to all."""
        circle = self._circle
        note = _NOTE.pack(size, str(dtype).removeprefix("torch.").encode())
        if circle.rank == circle.leader:
            descriptor, theirs = make_file(file_bytes(rows, size, dtype)), note
        else:
            descriptor, theirs = circle.take(_NOTE.size)
        try:
            if circle.rank == circle.leader:
                circle.give(descriptor, note)
            if theirs != note:
                raise InputError(_mismatch(circle, note, theirs))
            return rows_of(descriptor, rows, size, dtype)
        finally:
            os.close(descriptor)


def _mismatch(circle: Circle, mine: bytes, theirs: bytes) -> str:
    (size, dtype), (other_size, other_dtype) = (_NOTE.unpack(note) for note in (mine, theirs))
    return (
        f"Workers of one host sum different tensors: {size} × {_text(dtype)} on rank "
        f"{circle.rank}, {other_size} × {_text(other_dtype)} on rank {circle.leader}. "
        "All of them need the same network."
    )


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode()
