"""SharedMemorySummation: the sum over workers of one host in their memory, over hosts by gloo.

Small tensors of one host go through `SharedSlots`, with a single barrier. For all others, each
worker has its values where the others of its host can read them, and a sum takes these steps:

1. A barrier: all values are there.
2. Each worker sums its share of all workers' values, into a row for sums.
3. A barrier: the sum is complete. (With several hosts, their leaders then sum it over gloo, and
   signal when it is.)
4. Each copies the sum to its own values.

Why the next sum needs no barrier before it begins: between barriers 1 and 3 a worker reads others'
values, after barrier 3 only the row for sums. So its values are its own again after barrier 3,
whatever the others are doing. And the row for sums is written only after the next barrier 1, to
which all come with the last sum copied. Over hosts, the leader alone writes there, after barrier 3
and before its signal, which all others wait for before they read.

Every share is summed by one worker in one order, so all workers have the same bits.
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
from farandole.parallel.shared_memory.buffers import (
    SharedRows,
    SharedSlots,
    create_file,
    file_size,
    map_rows,
    slot_bytes,
)
from farandole.parallel.shared_memory.host_barrier import HostBarrier
from farandole.parallel.summation import TorchSummation

_NOTE = struct.Struct("!q16s")  # size and dtype of what a file is for
_EXTRA_SECONDS = 5.0
"""Seconds that a leader has to say why there is no sum, before others blame the leader."""


class SharedMemorySummation:
    """A summation for CPUs; `host_rendezvous.join_host` makes one.

    `sent` counts what leaders send to other hosts. What workers of one host read in each other's
    memory isn't sent anywhere.

    Args:
        barrier: of the workers of this host.
        hosts: how many hosts there are.
        group: the leaders of all hosts; None on workers that aren't, and where one host is all.
    """

    def __init__(
        self, barrier: HostBarrier, hosts: int = 1, group: dist.ProcessGroup | None = None
    ) -> None:
        self._barrier = barrier
        self._hosts = hosts
        self._group = group
        self._leaders = TorchSummation(hosts, group) if group is not None else None
        self._rows = WeakTensorKeyDictionary()
        self._slots: SharedSlots | None = None
        self._others: dict[torch.dtype, SharedRows] = {}
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
        rows = self._new_rows(size, dtype)
        flat = rows.mine[:]
        self._rows[flat] = rows
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
        """Close connections. Memory goes with the last tensor in it."""
        self._rows.clear()
        self._others.clear()
        self._slots = None
        self._barrier.close()
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
        return self._hosts == 1 and length <= slot_bytes(len(self._barrier.ranks))

    def _make_slots(self) -> SharedSlots:
        workers = len(self._barrier.ranks)
        rows = self._new_memory(2 * workers, slot_bytes(workers), torch.uint8)
        return SharedSlots(rows, self._barrier)

    def _sum_in_shares(self, flat: torch.Tensor) -> None:
        rows = self._rows.get(flat)
        if rows is None:
            rows = self._rows_for(flat)
            rows.mine.copy_(flat.reshape(-1))
        self._barrier.wait()
        rows.sum_share()
        self._barrier.wait()
        if self._hosts > 1:
            self._sum_hosts(rows.sum)
        flat.copy_(rows.sum.view(flat.shape))

    def _sum_hosts(self, values: torch.Tensor) -> None:
        if self._leaders is not None:
            self._leaders.sum_(values)
            self._barrier.signal()
        else:
            self._barrier.wait_for([self._barrier.leader], _EXTRA_SECONDS)

    def _rows_for(self, flat: torch.Tensor) -> SharedRows:
        """A place for a tensor from elsewhere; large enough ones are used again."""
        found = self._others.get(flat.dtype)
        if found is None or found.size < flat.numel():
            found = self._others[flat.dtype] = self._new_rows(flat.numel(), flat.dtype)
        return found.first(flat.numel())

    def _new_rows(self, size: int, dtype: torch.dtype) -> SharedRows:
        rows = self._new_memory(len(self._barrier.ranks) + 1, size, dtype)
        return SharedRows(rows, self._barrier.position)

    def _new_memory(self, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory that the leader makes and hands to all."""
        barrier = self._barrier
        note = _NOTE.pack(size, str(dtype).removeprefix("torch.").encode())
        if barrier.rank == barrier.leader:
            descriptor, theirs = create_file(file_size(rows, size, dtype)), note
        else:
            descriptor, theirs = barrier.receive_file(_NOTE.size)
        try:
            if barrier.rank == barrier.leader:
                barrier.send_file(descriptor, note)
            if theirs != note:
                raise InputError(_mismatch(barrier, note, theirs))
            return map_rows(descriptor, rows, size, dtype)
        finally:
            os.close(descriptor)


def _mismatch(barrier: HostBarrier, mine: bytes, theirs: bytes) -> str:
    (size, dtype), (other_size, other_dtype) = (_NOTE.unpack(note) for note in (mine, theirs))
    return (
        f"Workers of one host sum different tensors: {size} × {_text(dtype)} on rank "
        f"{barrier.rank}, {other_size} × {_text(other_dtype)} on rank {barrier.leader}. "
        "All of them need the same network."
    )


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode()
