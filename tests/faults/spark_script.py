"""A driver whose standalone cluster loses executors and workers while it trains:

    python spark_script.py FOLDER SCENARIO…

Prints one JSON object on its last line: for each scenario, how the fit came through.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.clusters import StandaloneCluster
from tests.faults.ledger import Ledger, Log, network, no_row_lost_or_twice, table

from farandole.engines import SparkEngine
from farandole.spark import TorchEstimator
from farandole.training import EpochEnded, TrainingResumed, WorkersRestarted

FOLDER = Path(sys.argv[1])
EPOCHS = 4


class Slow(Ledger):
    """A ledger that takes its time, so that there is a middle of the fit."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1 if self.training else 0.0)
        return super().forward(rows)


class Injection(Log):
    """Lets `fault` happen after the first epoch, and `mend` after the first one that goes on."""

    def __init__(self, fault: Callable[[], None], mend: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.happened = 0.0
        self.times: dict[str, float] = {}
        self._fault, self._mend = fault, mend

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        self.times.setdefault(type(event).__name__, time.time())
        if isinstance(event, EpochEnded) and not self.happened:
            self.happened = time.time()
            threading.Thread(target=self._fault, daemon=True).start()
        if isinstance(event, TrainingResumed) and self._mend is not None:
            mend, self._mend = self._mend, None
            threading.Thread(target=mend, daemon=True).start()


def fit(folder: Path, log: Log, **params: Any) -> Any:
    ledger = folder / "ledger"
    ledger.mkdir(parents=True)
    net = network(ledger)
    net[0] = Slow(ledger)
    estimator = TorchEstimator(
        network=net,
        epochs=EPOCHS,
        batchSize=48,
        learningRate=0.01,
        seed=3,
        numWorkers=2,
        progress=False,
        observer=log,
        checkpointDir=str(folder / "checkpoints"),
        checkpointSteps=3,
        **params,
    )
    log.begin()
    return estimator.fit(frame)


def came_through(name: str, injection: Injection, **params: Any) -> dict[str, Any]:
    folder = FOLDER / name.replace(" ", "-")
    model = fit(folder, injection, **params)
    used = injection.uses(folder / "ledger")
    undisturbed = list(plain.network.state_dict().values())
    mine = list(model.network.state_dict().values())
    return {
        "reasons": [event.reason for event in injection.restarts],
        "workers": [event.workers for event in injection.restarts],
        "noticed": injection.times[WorkersRestarted.__name__] - injection.happened,
        "resumed": injection.times[TrainingResumed.__name__] - injection.happened,
        "rows": no_row_lost_or_twice(used, EPOCHS),
        "same": all(map(torch.equal, mine, undisturbed)),
        "epochs": len(model.history),
    }


def kill_executor() -> None:
    os.kill(cluster.executors()[-1].pid, signal.SIGKILL)


def kill_worker() -> None:
    cluster.kill_worker(cluster.workers[-1])


def executor_killed() -> dict[str, Any]:
    return came_through("executor killed", Injection(kill_executor))


def worker_lost_and_back() -> dict[str, Any]:
    """Too few workers for a while: it goes on with one, and takes the other in again."""
    settled = SparkEngine.settled_slots

    def impatient(engine: SparkEngine, wanted: int) -> int:
        return settled(engine, wanted, 2.0)

    SparkEngine.settled_slots = impatient  # type: ignore[method-assign, assignment]
    injection = Injection(kill_worker, cluster.start_worker)
    return came_through("worker lost", injection, minWorkers=1)


SCENARIOS = {"executor killed": executor_killed, "worker lost and back": worker_lost_and_back}

with StandaloneCluster(FOLDER) as cluster:
    spark = cluster.session()
    frame = spark.createDataFrame(table().to_pandas()).repartition(2).cache()
    plain = fit(FOLDER / "undisturbed", Log())
    found = {name: SCENARIOS[name]() for name in sys.argv[2:]}
    spark.stop()
print(json.dumps(found))
