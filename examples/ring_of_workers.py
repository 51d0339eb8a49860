"""The Run API: an all-reduce by hand, and how long it takes.

python examples/ring_of_workers.py
"""

import time

import torch
import torch.distributed as dist

import farandole


def sum_many(size: int) -> float:
    """Milliseconds for one all-reduce of `size` numbers."""
    values = torch.ones(size)
    dist.all_reduce(values)
    start = time.perf_counter()
    for _ in range(20):
        dist.all_reduce(values)
    return (time.perf_counter() - start) / 20 * 1e3


for size in (1_000, 100_000, 10_000_000):
    times = farandole.run(sum_many, (size,), num_workers=2, engine="local")
    print(f"{size:>10,} numbers: {max(times):.2f} ms")
