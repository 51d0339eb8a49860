"""Two dozen fits and runs in one session, some of which fail: nothing hangs, and nothing grows."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
import torch.distributed as dist
from tests.engines.traces import eventually, traces
from torch import nn

import farandole
from farandole.errors import WorkerFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEGABYTE = 1 << 20
held: list[nn.Module] = []
"""A user's global, which keeps a DDP module beyond the end of its process group."""


def train_by_hand(hold: bool) -> dict[str, int]:
    """What a user's own function does, down to the module that outlives its ring."""
    torch.manual_seed(0)
    network = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.ones(8, 4)).square().sum().backward()
        optimizer.step()
    held.clear()
    if hold:
        held.append(network)
    return size_of_process()


def size_of_process() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "pid": process.pid,
        "memory": process.memory_info().rss,
        "files": process.num_fds(),
        "threads": process.num_threads(),
        "ports": sum(c.status == psutil.CONN_LISTEN for c in process.net_connections("inet")),
    }


def fail_in_the_middle() -> None:
    """Rank 1 fails with a collective under way that rank 0 waits for."""
    if farandole.current_world().rank == 1:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        assert work is not None
        raise LookupError("soak")
    dist.barrier()


def failing_run() -> None:
    start = time.monotonic()
    with pytest.raises(WorkerFailed, match="rank 1 failed: LookupError: soak"):
        farandole.run(fail_in_the_middle, num_workers=2)
    assert time.monotonic() - start < 60


def fit(frame: DataFrame) -> None:
    from farandole.spark import TorchEstimator

    estimator = TorchEstimator(
        network=nn.Linear(2, 2),
        loss="cross_entropy",
        epochs=2,
        batchSize=16,
        numWorkers=2,
        progress=False,
    )
    assert len(estimator.fit(frame).history) == 2


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before if name != "pid"}


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [([float(i % 7), float(i % 5)], i % 2) for i in range(64)]
    return spark.createDataFrame(rows, "features array<float>, label int").cache()


@pytest.mark.soak
@pytest.mark.timeout(300)  # about 25 s on a quiet machine
def test_two_dozen_fits_and_runs(frame: DataFrame) -> None:
    fit(frame)
    failing_run()
    threads, driver = threading.active_count(), size_of_process()
    trace = traces()

    for number in range(8):
        if number % 4 == 3:
            failing_run()
        elif number % 2:
            farandole.run(train_by_hand, (True,), num_workers=2)
        else:
            fit(frame)

    first: list[dict[str, int]] = []
    for number in range(16):
        if number % 2:
            fit(frame)
        else:
            last = farandole.run(train_by_hand, (number % 4 == 0,), num_workers=2)
        if number == 4:  # the workers are new after the last failure: let them settle
            first = last

    assert {worker["pid"] for worker in first} == {worker["pid"] for worker in last}
    for before, after in zip(first, last, strict=True):
        growth = grown(before, after)
        assert growth["memory"] < 15 * MEGABYTE, growth
        assert growth["files"] <= 2, growth
        assert growth["threads"] <= 1, growth
        assert growth["ports"] == 0, growth
    assert eventually(lambda: traces() == trace), (trace, traces())
    assert threading.active_count() == threads
    growth = grown(driver, size_of_process())
    assert growth["memory"] < 30 * MEGABYTE, growth
    assert growth["files"] <= 3, growth
