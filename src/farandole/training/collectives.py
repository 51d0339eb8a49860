"""A collective over Python objects, which also works for a single worker."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from farandole.parallel import long_barrier


def gather_objects(value: Any, size: int) -> list[Any]:
    """The values of all workers, in rank order, on all of them.

    >>> gather_objects("mine", 1)
    ['mine']
    """
    if size == 1:
        return [value]
    long_barrier(size)  # what each has found out about its rows took its time
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, value)
    return gathered
