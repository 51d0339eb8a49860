"""What workers and parameter servers send each other.

A request is five numbers: its kind, and the worker's stop flags. A gradient follows a `PUSH`. The
answer to a `PUSH`, a `TICK` and a `PULL` is whether the server has failed, all workers' stop flags,
and the server's parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate

import torch

PUSH, TICK, PULL, LEAVE, CLOSE = range(5)
"""Kinds of requests: here is a gradient; I have none; give me parameters; don't wait for me until
I am back; that was the last request."""
REQUEST_NUMBERS = 5
ANSWER_NUMBERS = 5
_ALIGNMENT = 16  # bytes of the widest type there is


def tag(server: int, is_answer: bool) -> int:
    """The tag of a message: two workers may be each other's servers."""
    return 2 * server + is_answer


@dataclass(frozen=True)
class StopFlags:
    """Reasons to stop that one worker has, and that all others have to know of.

    >>> StopFlags(interrupted=True) | StopFlags(expired=True)
    StopFlags(interrupted=True, expired=True, diverged=False, preempted=False)
    """

    interrupted: bool = False
    expired: bool = False
    diverged: bool = False
    preempted: bool = False

    def __or__(self, other: StopFlags) -> StopFlags:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return StopFlags(*(one or another for one, another in pairs))

    def numbers(self) -> list[float]:
        """To send."""
        return [float(flag) for flag in astuple(self)]

    @classmethod
    def of(cls, numbers: Iterable[float]) -> StopFlags:
        """From what was sent.

        >>> StopFlags.of([0.0, 1.0, 0.0, 0.0])
        StopFlags(interrupted=False, expired=True, diverged=False, preempted=False)
        """
        return cls(*(number > 0 for number in numbers))


class TensorMessage:
    """Memory for numbers and for tensors shaped like these, in one buffer of bytes.

    >>> message = TensorMessage(1, [torch.zeros(2, 3), torch.zeros(4, dtype=torch.float64)])
    >>> message.pack([0.5], [torch.ones(2, 3), torch.ones(4, dtype=torch.float64)])
    >>> message.numbers.tolist(), message.tensors[1].tolist(), message.size
    ([0.5], [1.0, 1.0, 1.0, 1.0], 56)
    """

    def __init__(self, numbers: int, like: Sequence[torch.Tensor]) -> None:
        sizes = [8 * numbers, *(tensor.nbytes for tensor in like)]
        starts = [0, *accumulate(_aligned(size) for size in sizes)]
        # On the CPU, wherever the tensors are: gloo sends from there.
        self.bytes = torch.zeros(starts[-1], dtype=torch.uint8)
        views = [
            self.bytes[start : start + size] for start, size in zip(starts, sizes, strict=False)
        ]
        self.numbers = views[0].view(torch.float64)
        self.tensors = [
            view.view(tensor.dtype).view(tensor.shape)
            for view, tensor in zip(views[1:], like, strict=True)
        ]
        self.size = sum(sizes[1:])
        """Bytes of the tensors alone."""

    def pack(self, numbers: Sequence[float], tensors: Iterable[torch.Tensor]) -> None:
        """Copy these in."""
        self.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        with torch.no_grad():
            for target, tensor in zip(self.tensors, tensors, strict=True):
                target.copy_(tensor)

    def unpack(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy what came into these."""
        with torch.no_grad():
            for target, tensor in zip(self.tensors, tensors, strict=True):
                tensor.copy_(target)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
