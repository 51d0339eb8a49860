"""What a compression is: a choice that makes, for each buffer of gradients, one that sums it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Compressor(Protocol):
    """Sums one flat buffer of gradients over all workers, update after update."""

    def sum_(self, flat: torch.Tensor) -> None:
        """Put (nearly) the sum over all workers in place; the same bits on all of them."""
        ...

    def state(self) -> Any:
        """What it remembers from update to update, as plain values and tensors."""
        ...

    def load_states(self, states: Sequence[Any], leaders: Any) -> None:
        """Go on from the states of one worker, several or none; what they held back is added up.

        `leaders` is the leader's: what all have alike is there for who is new.
        """
        ...


class Compression(Protocol):
    """A way to send less than all bytes of the gradients."""

    @property
    def name(self) -> str:
        """What it is called by."""
        ...

    def check(self) -> None:
        """Raise for settings that make no sense."""
        ...

    def compressor(
        self, shapes: Sequence[torch.Size], like: torch.Tensor, collectives: CountedCollectives
    ) -> Compressor:
        """Prepare for gradients of these shapes, one after the other in a buffer like that."""
        ...


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type to calculate in: that of the gradients, but not narrower than float32.

    >>> wide(torch.bfloat16), wide(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


class CountedCollectives:
    """Messages between all workers of a group, by torch.distributed.

    Args:
        workers: How many there are.
        group: Which of all workers; None for all.

    >>> CountedCollectives(workers=1).all_gather(torch.tensor([1, 2])).tolist()
    [[1, 2]]
    """

    def __init__(self, workers: int, group: dist.ProcessGroup | None = None) -> None:
        self.sent = 0
        self.workers = workers
        self._group = group

    def all_reduce(self, values: torch.Tensor) -> None:
        """Put the exact sum over all workers in place of each one's own values."""
        if self.workers > 1:
            dist.all_reduce(values, group=self._group)
            self.sent += 2 * (self.workers - 1) * values.nbytes // self.workers

    def all_to_all(self, messages: torch.Tensor) -> torch.Tensor:
        """Send row i to worker i; give what each of them sent here, in the same order."""
        if self.workers == 1:
            return messages
        # As bytes: gloo doesn't know all types of numbers, and needs to know none for this.
        outgoing = messages.contiguous().view(torch.uint8)
        arriving = torch.empty_like(outgoing)
        dist.all_to_all_single(arriving, outgoing, group=self._group)
        self.sent += (self.workers - 1) * outgoing[0].nbytes
        return arriving.view(messages.dtype)

    def all_gather(self, message: torch.Tensor) -> torch.Tensor:
        """The messages of all workers, a row each."""
        if self.workers == 1:
            return message[None]
        outgoing = message.contiguous().view(torch.uint8)
        arriving = outgoing.new_empty(self.workers, len(outgoing))
        dist.all_gather(list(arriving.unbind()), outgoing, group=self._group)
        self.sent += (self.workers - 1) * outgoing.nbytes
        return arriving.view(message.dtype)

    def close(self) -> None:
        """Release the group."""
        self._group = None
