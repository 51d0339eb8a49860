"""Buckets: parts of flat gradients that are on their way while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from farandole.parallel.summation import TorchSummation

FIRST_BYTES = 1 << 20
"""The first bucket is a small one, so that something is on its way soon."""


@dataclass(frozen=True)
class Bucket:
    """A part of a flat buffer, and the parameters whose gradients are in it."""

    values: torch.Tensor
    parameters: Sequence[nn.Parameter]
    is_last: bool
    """Whether totals come with it, so that it has to wait for them."""


def gradients_per_bucket(lengths: Sequence[int], most: int, first: int = FIRST_BYTES) -> list[int]:
    """How many gradients of so many bytes go to each bucket, in their order.

    A bucket is full once it has `most` bytes, the first one `first` if that is less.

    >>> gradients_per_bucket([4, 4, 4, 20, 2, 2], most=10, first=4)
    [1, 3, 2]
    >>> gradients_per_bucket([1, 1, 1], most=10)
    [3]
    """
    counts, count, size, limit = [], 0, 0, min(first, most)
    for length in lengths:
        count, size = count + 1, size + length
        if size >= limit:
            counts.append(count)
            count, size, limit = 0, 0, most
    return [*counts, count] if count else counts


class Buckets:
    """Starts to sum each bucket once all its gradients are there.

    Gradients become ready in nearly, but not exactly the same order on all workers, and not at all
    where there are no rows or where a parameter isn't used. Collectives have to start in one order,
    so a bucket starts only when all before it have. What hasn't started in the backward pass does
    so in `reduce_gradients`.
    """

    def __init__(self, buckets: Sequence[Bucket], summation: TorchSummation) -> None:
        # Those with totals last.
        self._buckets = sorted(buckets, key=lambda bucket: bucket.is_last)
        self._early = sum(not bucket.is_last for bucket in buckets)
        self._summation = summation
        self._awaited: list[int] | None = None
        self._works: list[dist.Work] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._note, number))
            for number, bucket in enumerate(self._buckets[: self._early])
            for parameter in bucket.parameters
        ]

    def prepare_for_backward(self, passes: int) -> None:
        """Expect so many gradients of each parameter."""
        self._awaited = [passes * len(bucket.parameters) for bucket in self._buckets]
        self._works.clear()

    def finalize_backward(self) -> None:
        """Start the rest, and wait for everything."""
        self._awaited = None
        self._start(len(self._buckets))
        for work in self._works:
            work.wait()
        self._works.clear()

    def close(self) -> None:
        """Listen no more."""
        for hook in self._hooks:
            hook.remove()
        self._works.clear()

    def _note(self, number: int, parameter: torch.Tensor) -> None:
        """Take note of a gradient."""
        if self._awaited is None:
            return
        self._awaited[number] -= 1
        if self._awaited[number] < 0:
            raise RuntimeError("There are more backward passes than zero_grad(passes) was given.")
        ready = len(self._works)
        while ready < self._early and self._awaited[ready] == 0:
            ready += 1
        self._start(ready)

    def _start(self, end: int) -> None:
        for bucket in self._buckets[len(self._works) : end]:
            self._works.append(self._summation.start(bucket.values))
