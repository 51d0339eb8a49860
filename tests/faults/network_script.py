"""A driver on the first of several hosts, whose cluster has a worker here and one on the second:

    ip netns exec HOST python network_script.py FOLDER HOSTS SCENARIO

HOSTS is a JSON list of the fields of each `Host`. Prints one JSON object on its last line: how the
fit came through.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tests.clusters import StandaloneCluster
from tests.faults.hosts import Host
from tests.faults.injection import Fits, Injection, give_lost_executors, weights
from tests.faults.ledger import Log, table

FOLDER = Path(sys.argv[1])
CALLS = Path(__file__).with_name("stranger_script.py")
HERE, THERE, STRANGER = [Host(**fields) for fields in json.loads(sys.argv[2])]


def cut_and_mended() -> dict[str, Any]:
    """It goes on with the worker that it still reaches, and takes the other in again."""

    def mend() -> None:
        with fits.held("cut"):
            THERE.plug_cable()
            fits.wait_for_slots()

    give_lost_executors(2.0)
    injection = Injection(THERE.pull_cable, mend)
    return fits.came_through("cut", injection, minWorkers=1, heartbeat=5.0) | {"cut": THERE.address}


def encrypted() -> dict[str, Any]:
    """The same numbers in the clear, encrypted, and on one host; a stranger learns nothing."""
    heard: list[dict[str, Any]] = []

    def call() -> None:
        with fits.held("encrypted"):
            ports = [(host.address, port) for host in (HERE, THERE) for port in listening(host)]
            command = STRANGER.command(sys.executable, str(CALLS), json.dumps(ports))
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            heard.extend(json.loads(said.stdout))

    mine = weights(fits.fit("encrypted", Injection(call), encrypt=True))
    return {
        "heard": heard,
        "same as in the clear": all(map(torch.equal, mine, fits.undisturbed)),
        "same as on one host": all(map(torch.equal, mine, of_one_host())),
    }


def listening(host: Host) -> list[int]:
    """The ports of a host on which Python processes listen: the workers' and the driver's."""
    command = host.command("ss", "--no-header", "--tcp", "--listening", "--numeric", "--processes")
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[3].rpartition(":")[2]) for line in lines if '"python' in line]


def of_one_host() -> list[torch.Tensor]:
    """The weights of a fit whose workers are both on this host, and share its memory."""
    cluster.kill_worker(cluster.workers[-1])
    fits.wait_for_slots(1)
    cluster.start_worker()
    fits.wait_for_slots(2)
    return weights(fits.fit("one-host", Log()))


SCENARIOS = {"cut and mended": cut_and_mended, "encrypted": encrypted}

with StandaloneCluster(FOLDER, workers=1, address=HERE.address) as cluster:
    cluster.start_worker(THERE.address, THERE.command())
    spark = cluster.session()
    frame = spark.createDataFrame(table().to_pandas()).repartition(2).cache()
    fits = Fits(frame, FOLDER)
    fits.wait_for_slots()
    found = SCENARIOS[sys.argv[3]]()
    spark.stop()
print(json.dumps(found))
