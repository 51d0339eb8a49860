from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import farandole
from farandole.parallel import long_barrier

pytestmark = pytest.mark.integration


def meet_late() -> tuple[float, float]:
    world = farandole.current_world()
    dist.barrier()  # so that both begin at the same time
    if world.rank == 1:
        time.sleep(2.5 * world.timeout)
    start = time.monotonic()
    long_barrier(world.size)
    waited = time.monotonic() - start
    long_barrier(1)  # alone there is nobody to wait for, whoever else is in the ring
    total = torch.ones(1)
    dist.all_reduce(total)  # the next collective is in step again
    return waited, total.item()


def test_it_waits_longer_than_a_collective_does() -> None:
    results = farandole.run(meet_late, num_workers=2, engine="local", timeout=1)
    assert [total for _, total in results] == [2.0, 2.0]
    assert results[0][0] > 1.2
