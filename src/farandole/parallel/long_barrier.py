"""A barrier without the time-out of a collective, for workers that have different amounts to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from farandole.world import LONGEST_WAIT


def long_barrier(size: int) -> None:
    """Wait for all workers, for as long as they live; `size` is how many there are.

    Steps are alike on all workers, and a minute is long for one. To read rows, to check or to
    validate them may take one worker many minutes more than another. A worker that dies meanwhile
    closes its connection, and one that gets stuck has no heartbeat: neither is waited for.
    """
    if size == 1:  # it may be alone inside of a ring that has nothing to do with it
        return
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=LONGEST_WAIT)
    group: Any = dist.group.WORLD
    group._get_backend(torch.device("cpu")).allreduce([torch.zeros(1)], options).wait()
