"""Summations: ways to sum one flat tensor over all workers.

`TorchSummation` is the all-reduce of torch.distributed; `ScheduledSummation` carries out a schedule
with sends from one worker to another. A ring goes round twice: scatter-reduce, where each adds what
comes to what it has, and all-gather, where each takes what comes. With a parameter server, the
rounds are a push and a pull. The third way is `shared_memory`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from farandole.parallel.schedules import Schedule, Step
from farandole.parallel.trace import span
from farandole.world import World


class Summation(Protocol):
    """Sums tensors over the workers of a ring, or of a part of it."""

    @property
    def sent(self) -> int:
        """Bytes that this worker has sent to others so far; reading their memory isn't sending."""
        ...

    def buffer(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A flat tensor of zeros in memory that this can sum from without a copy."""
        ...

    def sum_(self, flat: torch.Tensor) -> None:
        """Put the sum over all workers in place of each one's own values."""
        ...

    def close(self) -> None:
        """Release memory, connections and processes."""
        ...


class TorchSummation:
    """The all-reduce of torch.distributed: gloo between CPUs, nccl between GPUs.

    >>> TorchSummation(workers=1).buffer(3, torch.float64, torch.device("cpu")).tolist()
    [0.0, 0.0, 0.0]
    """

    def __init__(self, workers: int, group: dist.ProcessGroup | None = None) -> None:
        self.sent = 0
        self._workers = workers
        self._group = group

    def buffer(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Any memory will do."""
        return torch.zeros(size, dtype=dtype, device=device)

    def sum_(self, flat: torch.Tensor) -> None:
        """Sum in place."""
        if self._workers > 1:
            dist.all_reduce(flat, group=self._group)
            self._count(flat)

    def start(self, flat: torch.Tensor) -> dist.Work:
        """Sum in place, in the background; needs other workers."""
        work: dist.Work = dist.all_reduce(flat, group=self._group, async_op=True)
        self._count(flat)
        return work

    def close(self) -> None:
        """Forget the group."""
        self._group = None

    def _count(self, flat: torch.Tensor) -> None:
        self.sent += 2 * (self._workers - 1) * flat.nbytes // self._workers


@dataclass(frozen=True)
class _Transfer:
    """A chunk that goes to another worker, or comes from it."""

    peer: int
    chunk: int


@dataclass(frozen=True)
class _WorkerStep:
    """What one worker does in a step."""

    receives: tuple[_Transfer, ...]
    sends: tuple[_Transfer, ...]
    adds: bool


class ScheduledSummation:
    """A summation that follows a schedule, and counts what it sends.

    `group` is a process group of as many workers as the schedule has; None for all of them.

    >>> from farandole.parallel.schedules import ring
    >>> flat = torch.arange(3.0)
    >>> ScheduledSummation(ring(1), World()).sum_(flat)
    >>> flat.tolist()
    [0.0, 1.0, 2.0]
    """

    def __init__(
        self, schedule: Schedule, world: World, group: dist.ProcessGroup | None = None
    ) -> None:
        rank = world.rank if group is None else dist.get_rank(group)
        size = world.size if group is None else dist.get_world_size(group)
        assert schedule.workers == size, f"a schedule for {schedule.workers} workers, not {size}"
        self.sent = 0
        self._schedule = schedule
        self._group = group
        self._steps = [_worker_step(step, rank) for step in schedule.steps()]
        self._scratch: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def buffer(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Any memory will do: chunks are sent from where they lie."""
        return torch.zeros(size, dtype=dtype, device=device)

    def sum_(self, flat: torch.Tensor) -> None:
        """Sum in place, step by step."""
        chunks = [flat[start:end] for start, end in self._schedule.bounds(len(flat))]
        for step in self._steps:
            self._carry_out(step, chunks)

    def close(self) -> None:
        """Release the memory that chunks arrive in, and the group."""
        self._scratch.clear()
        self._group = None

    def _carry_out(self, step: _WorkerStep, chunks: list[torch.Tensor]) -> None:
        """Be ready to receive, send, and wait for both."""
        receives = [transfer for transfer in step.receives if len(chunks[transfer.chunk])]
        sends = [transfer for transfer in step.sends if len(chunks[transfer.chunk])]
        targets = [chunks[transfer.chunk] for transfer in receives]
        if step.adds:
            targets = self._scratch_for(targets)
        receives_pending = [self._receive(*pair) for pair in zip(receives, targets, strict=True)]
        sends_pending = [self._send(transfer, chunks[transfer.chunk]) for transfer in sends]
        # One after the other, whoever comes first: the order of a sum decides its last bits.
        for transfer, target, work in zip(receives, targets, receives_pending, strict=True):
            with span("wait", f"chunk {transfer.chunk} from {transfer.peer}"):
                work.wait()
            if step.adds:
                chunks[transfer.chunk].add_(target)
        for transfer, work in zip(sends, sends_pending, strict=True):
            with span("send", f"chunk {transfer.chunk} to {transfer.peer}"):
                work.wait()

    # A tag tells chunks apart. What has the same one, such as the chunks of one flat tensor and of
    # the next, arrives in the order it was sent in.

    def _receive(self, transfer: _Transfer, target: torch.Tensor) -> dist.Work:
        return _required(
            dist.irecv(target, group=self._group, tag=transfer.chunk, group_src=transfer.peer)
        )

    def _send(self, transfer: _Transfer, chunk: torch.Tensor) -> dist.Work:
        self.sent += chunk.nbytes
        return _required(
            dist.isend(chunk, group=self._group, tag=transfer.chunk, group_dst=transfer.peer)
        )

    def _scratch_for(self, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
        """As much memory as these chunks take, somewhere else; the same in every call."""
        if not chunks:
            return []
        sizes = [len(chunk) for chunk in chunks]
        kind = chunks[0].dtype, chunks[0].device
        if kind not in self._scratch or len(self._scratch[kind]) < sum(sizes):
            self._scratch[kind] = torch.empty(sum(sizes), dtype=kind[0], device=kind[1])
        return list(self._scratch[kind][: sum(sizes)].split(sizes))


def _worker_step(step: Step, rank: int) -> _WorkerStep:
    mine = step.receivers == rank
    receives = _transfers(step.senders[mine].tolist(), step.chunks[mine].tolist())
    mine = step.senders == rank
    sends = _transfers(step.receivers[mine].tolist(), step.chunks[mine].tolist())
    return _WorkerStep(receives, sends, step.adds)


def _transfers(peers: Iterable[int], chunks: Iterable[int]) -> tuple[_Transfer, ...]:
    """By rank, so that every run adds in the same order."""
    pairs = sorted(zip(peers, chunks, strict=True))
    return tuple(_Transfer(peer, chunk) for peer, chunk in pairs)


def _required(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this worker is no member of the group"
    return work
