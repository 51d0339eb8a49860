"""A user's script, without a `__main__` guard: python driver_script.py local|spark.

The test presses Ctrl-C when both workers have said READY. It runs in another folder, so that
`traces` can be imported only because it lies beside the script.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import traces

import farandole
from farandole.api.run import print_output
from farandole.engines import Task, resolve

ENGINE = sys.argv[1]
if ENGINE == "spark":
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "farandole.daemon")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")


class Point:
    """Lives in `__main__`, and comes back as what it was."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


def say(name: str, value: object) -> None:
    print(f"{name} {json.dumps(value)}", flush=True)


def wait() -> None:
    print("READY", os.getpid())
    time.sleep(300)


def stop_in_order(world, state):
    print("READY", os.getpid())
    while not world.link.stop_requested():
        time.sleep(0.01)
    return "in order"


def stubborn(world, state):
    wait()


def interrupted(work) -> object:
    task = Task(load=lambda *_: None, work=work, stoppable=True)
    try:
        return resolve(None).run(task, 2, timeout=60, on_message=print_output)
    except KeyboardInterrupt:
        return "interrupted"


def ring() -> Point:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    return Point(farandole.current_world().rank)


points = farandole.run(ring, num_workers=2)
say("POINTS", [[isinstance(point, Point), point.rank] for point in points])
before = traces.traces()
if ENGINE == "local":
    say("LAMBDA", farandole.run(lambda x: traces.square(x), (3,), num_workers=1))
say("ENGINE", resolve(None).name)

try:
    farandole.run(wait, num_workers=2)
except KeyboardInterrupt:
    say("PLAIN", "interrupted")
say("STOPPABLE", interrupted(stop_in_order))
say("STUBBORN", interrupted(stubborn))
traces.eventually(lambda: traces.traces() == before)
say("BEFORE", before)
say("AFTER", traces.traces())
