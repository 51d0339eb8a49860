"""A driver whose Ray on Spark doesn't come up, or gets Ctrl-C amid its start.

    python ray_start_script.py head|interrupt

Prints one JSON object on its last line.
"""

import json
import os
import signal
import sys
import threading
from typing import Any

import psutil
from ray.util.spark import cluster_init

from farandole import _spark
from farandole.errors import LaunchError
from farandole.spark import ray_on_spark

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "engines"))
from traces import eventually, listening


def nodes() -> list[int]:
    """Give the processes below this one that start Ray's nodes."""
    return [each.pid for each in psutil.Process().children(recursive=True) if _starts_a_node(each)]


def _starts_a_node(process: psutil.Process) -> bool:
    try:
        return "ray.util.spark.start_ray_node" in process.cmdline()
    except psutil.Error:
        return False


def press() -> None:
    if eventually(lambda: bool(nodes()), 120):
        os.kill(os.getpid(), signal.SIGINT)


spark = _spark.local_session("ray-start", 2)
tracker = spark.sparkContext.statusTracker()
ports, handler = listening(), signal.getsignal(signal.SIGTERM)
if sys.argv[1] == "head":
    cluster_init._RAY_HEAD_STARTUP_TIMEOUT = 0  # Ray gives it 20 s
else:
    threading.Thread(target=press, daemon=True).start()
found: dict[str, Any] = {"raised": None}
try:
    with ray_on_spark(spark, workers=1):
        pass
except (KeyboardInterrupt, LaunchError) as error:
    found["raised"] = [type(error).__name__, str(error)]
eventually(lambda: not (nodes() or tracker.getActiveJobsIds() or listening() != ports), 30)
found |= {"nodes": nodes(), "jobs": len(tracker.getActiveJobsIds())}
found["ports"] = sorted({*listening()} - {*ports})
found["handler"] = signal.getsignal(signal.SIGTERM) is handler
spark.stop()
print(json.dumps(found))
