"""A driver on the first of several hosts, whose cluster has a worker here and one on the second:

    ip netns exec HOST python network_script.py FOLDER HOSTS SCENARIO

HOSTS is a JSON list of the fields of each `Host`. Prints one JSON object on its last line: how the
fit came through.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.clusters import StandaloneCluster
from tests.faults.hosts import Host
from tests.faults.injection import Fits, Injection, give_lost_executors
from tests.faults.ledger import table

FOLDER = Path(sys.argv[1])
HERE, THERE, *OTHERS = [Host(**fields) for fields in json.loads(sys.argv[2])]


def cut_and_mended() -> dict[str, Any]:
    """It goes on with the worker that it still reaches, and takes the other in again."""
    give_lost_executors(2.0)
    injection = Injection(THERE.pull_cable, THERE.plug_cable)
    return fits.came_through("cut", injection, minWorkers=1, heartbeat=5.0)


SCENARIOS = {"cut and mended": cut_and_mended}

with StandaloneCluster(FOLDER, workers=1, address=HERE.address) as cluster:
    cluster.start_worker(THERE.address, THERE.command())
    spark = cluster.session()
    frame = spark.createDataFrame(table().to_pandas()).repartition(2).cache()
    fits = Fits(frame, FOLDER)
    found = SCENARIOS[sys.argv[3]]()
    spark.stop()
print(json.dumps(found))
