"""Summations: ways to sum one flat tensor over all workers."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist


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
        """Let go of memory, connections and processes."""
        ...


class Collective:
    """The all-reduce of torch.distributed: gloo between CPUs, nccl between GPUs.

    >>> Collective(workers=1).buffer(3, torch.float64, torch.device("cpu")).tolist()
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
        """There is nothing to let go of."""
        self._group = None

    def _count(self, flat: torch.Tensor) -> None:
        self.sent += 2 * (self._workers - 1) * flat.nbytes // self._workers
