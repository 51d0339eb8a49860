"""A driver whose standalone cluster loses executors and workers while it trains:

    python spark_script.py FOLDER SCENARIO…

Prints one JSON object on its last line: for each scenario, how the fit came through.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.clusters import StandaloneCluster
from tests.faults.injection import Fits, Injection, give_lost_executors
from tests.faults.ledger import table

FOLDER = Path(sys.argv[1])


def kill_executor() -> None:
    os.kill(cluster.executors()[-1].pid, signal.SIGKILL)


def kill_worker() -> None:
    cluster.kill_worker(cluster.workers[-1])


def executor_killed() -> dict[str, Any]:
    return fits.came_through("executor-killed", Injection(kill_executor))


def worker_lost_and_back() -> dict[str, Any]:
    """Too few workers for a while: it goes on with one, and takes the other in again."""

    def start_worker() -> None:
        with fits.held("worker-lost"):
            cluster.start_worker()
            fits.wait_for_slots()

    give_lost_executors(2.0)
    injection = Injection(kill_worker, start_worker)
    return fits.came_through("worker-lost", injection, minWorkers=1)


SCENARIOS = {"executor killed": executor_killed, "worker lost and back": worker_lost_and_back}

with StandaloneCluster(FOLDER) as cluster:
    spark = cluster.session()
    frame = spark.createDataFrame(table().to_pandas()).repartition(2).cache()
    fits = Fits(frame, FOLDER)
    found = {name: SCENARIOS[name]() for name in sys.argv[2:]}
    spark.stop()
print(json.dumps(found))
