"""A driver that starts Ray, is connected to it from several sides, and looks at what has changed.

    python ray_start_script.py

Prints one JSON object on its last line.
"""

import json
import os
import signal
import threading
from typing import Any

import ray

import farandole
from farandole.engines import LocalEngine, RayEngine, Task
from farandole.engines.ray_cluster import connect
from farandole.errors import InputError
from farandole.tuning import Float

FOUND: dict[str, Any] = {}
ERRORS: list[str] = []
ADDRESSES: list[str] = []


def started() -> None:
    try:
        ADDRESSES.append(connect(None).get_runtime_context().gcs_address)
    except BaseException as error:
        ERRORS.append(f"{type(error).__name__}: {error}")


def rank() -> int:
    return farandole.current_world().rank


def wait_in_order(world: Any, state: object) -> str:
    world.link.tell("up")
    while not world.link.stop_requested():
        pass
    return "in order"


def terminated(engine: Any) -> list[str]:
    """Send this process SIGTERM while a worker is at it."""

    def on_message(rank: int, message: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    task = Task(load=lambda *_: None, work=wait_in_order, stoppable=True, device="cpu")
    try:
        return engine.run(task, 1, timeout=60, on_message=on_message)
    except SystemExit as end:
        return [f"ended with {end.code}"]


def refused(address: str) -> str:
    try:
        RayEngine(address).connect()
    except InputError as error:
        return str(error)
    return ""


# A Ray of the user's own, with a GPU that nobody can compute on: it has a token by itself.
ray.init(num_cpus=3, num_gpus=1, include_dashboard=False, log_to_driver=False)
FOUND["users own"] = terminated(RayEngine())
FOUND["crowded"] = farandole.run(rank, num_workers=2, engine=RayEngine(start_timeout=20))
FOUND["local elsewhere"] = refused("local")
ray.shutdown()
signal.signal(signal.SIGTERM, signal.SIG_DFL)

before = dict(os.environ)
threads = [threading.Thread(target=started) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
FOUND["addresses"], FOUND["errors"] = ADDRESSES, ERRORS
FOUND["changed"] = sorted(
    name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)
)
ray.shutdown()

study = farandole.tune(
    lambda x: x * x, {"x": Float(-1, 1)}, trials=2, parallelism=2,
    engine=RayEngine("local"), progress=False,
)  # fmt: skip
FOUND["trials"] = study.counts["complete"]
FOUND["handler"] = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
FOUND["on ray"], FOUND["on local"] = terminated(RayEngine("local")), terminated(LocalEngine())
_, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
FOUND["same"] = [refused(f"{host}:{port}") for host in ("127.0.0.1", "localhost")]
FOUND["other port"] = refused("127.0.0.1:1")
print(json.dumps(FOUND))
