"""A driver on a cluster with dynamic allocation: Spark starts executors as it needs them.

    python dynamic_allocation_script.py FOLDER

Prints one JSON object on its last line.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from tests.clusters import StandaloneCluster

import farandole
from farandole import _spark
from farandole.engines import SparkEngine

FOLDER = Path(sys.argv[1])
ROWS = [(float(i) / 32, float(i % 3)) for i in range(32)]
OPTIONS: dict[str, Any] = {
    "loss": "mse", "batch_size": 32, "epochs": 8, "num_workers": 2, "progress": False,
    "learning_rate": 0.1,
}  # fmt: skip


class Network(torch.nn.Linear):
    """Lets something happen to rank 1, the first time that it trains; writes down each start."""

    def __init__(self, name: str = "", happens: Callable[[], None] | None = None) -> None:
        super().__init__(1, 1)
        self.path, self.happens, self.begun = f"{FOLDER}/{name}", happens, False

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rank = farandole.current_world().rank
        if self.happens and self.training and not self.begun and rank == 1:
            self.begun = True
            first = not os.path.exists(self.path)
            with open(self.path, "a") as log:
                log.write("started\n")
            if first:
                self.happens()
        return super().forward(rows)


def same_start(network: Network) -> Network:
    with torch.no_grad():
        network.weight.fill_(0.5)
        network.bias.fill_(0.25)
    return network


def by_hand() -> torch.Tensor:
    """All rows in every step, by torch alone: whatever their order, each counts once."""
    network = same_start(Network())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    features, labels = torch.tensor(ROWS).T.reshape(2, -1, 1)
    for _ in range(8):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(network(features), labels).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach()


def executor() -> int:
    """The JVM that runs this worker."""
    return next(parent.pid for parent in psutil.Process().parents() if "java" in parent.name())


def frame() -> Any:
    return spark.createDataFrame(ROWS, "x double, label double")


def fit(network: Network | None = None, **options: Any) -> torch.Tensor:
    result = farandole.train(same_start(network or Network()), frame(), **{**OPTIONS, **options})
    return torch.nn.utils.parameters_to_vector(result.network.parameters()).detach()


def seen(call: Callable[[], object]) -> dict[str, Any]:
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        text, kind = str(error), type(error).__name__
        return {"error": kind, "text": text, "seconds": time.monotonic() - start}
    return {"error": None}


def starts(name: str) -> int:
    return len((FOLDER / name).read_text().splitlines())


def fail() -> None:
    raise LookupError("of the user's own")


def kill_python() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor() -> None:
    os.kill(executor(), signal.SIGKILL)
    time.sleep(60)


def restarted(name: str, happens: Callable[[], None]) -> dict[str, Any]:
    """What a fit with a restart ends with, and the reason that was told."""
    heard: list[str] = []

    def note(event: object) -> None:
        if reason := getattr(event, "reason", None):
            heard.append(str(reason))

    weights = fit(Network(name, happens), max_restarts=1, observer=note)
    return {
        "difference": float((weights - plain).abs().max()),
        "starts": starts(name),
        "reason": heard[0],
    }


def short_of_slots() -> dict[str, Any]:
    """One of two executors is busy with something else."""

    def sleep(batches: Any) -> Any:
        time.sleep(120)
        yield from batches

    def work() -> None:
        _spark.add_tag(spark, "busy")
        seen(lambda: spark.range(0, 1, 1, 1).mapInArrow(sleep, "id long").collect())

    thread = _spark.thread(spark, work)
    thread.start()
    while not _spark.running_tasks(spark):
        time.sleep(0.2)
    found = seen(lambda: fit(engine=SparkEngine(spark, start_timeout=8)))
    _spark.cancel(spark, "busy")
    thread.join(30)
    return found


class Found(dict[str, Any]):
    """Shows each finding at once, for who waits."""

    def __setitem__(self, name: str, value: Any) -> None:
        print(name, value, file=sys.stderr, flush=True)
        super().__setitem__(name, value)


found = Found()
with StandaloneCluster(FOLDER) as cluster:
    settings = {"enabled": "true", "shuffleTracking.enabled": "true", "maxExecutors": "2"}
    settings |= {"initialExecutors": "0", "minExecutors": "0"}
    dynamic = {f"spark.dynamicAllocation.{name}": value for name, value in settings.items()}
    spark = cluster.session({**dynamic, "spark.executor.cores": "1"})
    found["executors before"] = len(cluster.executors())
    start = time.monotonic()
    weights = fit()
    found["seconds"] = time.monotonic() - start
    plain = by_hand()
    found["difference"] = float((weights - plain).abs().max())
    found["executors"] = len(set(farandole.run(executor, num_workers=2)))
    found["failed"] = seen(lambda: fit(Network("failed", fail), max_restarts=0))
    found["failed"]["starts"] = starts("failed")
    found["python killed"] = restarted("python", kill_python)
    found["executor killed"] = restarted("executor", kill_executor)
    found["too many"] = seen(lambda: fit(num_workers=3))
    found["busy"] = short_of_slots()
    found["again"] = float((fit() - plain).abs().max())
    spark.stop()
print(json.dumps(found), flush=True)
