"""Exchange: what compressed gradients go through, byte for byte, and counted."""

from __future__ import annotations

import torch
import torch.distributed as dist


class Exchange:
    """Messages between all workers of a group, by torch.distributed.

    Args:
        workers: How many there are.
        group: Which of all workers; None for all.

    >>> Exchange(workers=1).gather(torch.tensor([1, 2])).tolist()
    [[1, 2]]
    """

    def __init__(self, workers: int, group: dist.ProcessGroup | None = None) -> None:
        self.sent = 0
        self.workers = workers
        self._group = group

    def sum_(self, values: torch.Tensor) -> None:
        """Put the exact sum over all workers in place of each one's own values."""
        if self.workers > 1:
            dist.all_reduce(values, group=self._group)
            self.sent += 2 * (self.workers - 1) * values.nbytes // self.workers

    def swap(self, messages: torch.Tensor) -> torch.Tensor:
        """Send row i to worker i; give what each of them sent here, in the same order."""
        if self.workers == 1:
            return messages
        # As bytes: gloo doesn't know all types of numbers, and needs to know none for this.
        outgoing = messages.contiguous().view(torch.uint8)
        arriving = torch.empty_like(outgoing)
        dist.all_to_all_single(arriving, outgoing, group=self._group)
        self.sent += (self.workers - 1) * outgoing[0].nbytes
        return arriving.view(messages.dtype)

    def gather(self, message: torch.Tensor) -> torch.Tensor:
        """The messages of all workers, a row each."""
        if self.workers == 1:
            return message[None]
        outgoing = message.contiguous().view(torch.uint8)
        arriving = outgoing.new_empty(self.workers, len(outgoing))
        dist.all_gather(list(arriving.unbind()), outgoing, group=self._group)
        self.sent += (self.workers - 1) * outgoing.nbytes
        return arriving.view(message.dtype)

    def close(self) -> None:
        """Let go of the group."""
        self._group = None
