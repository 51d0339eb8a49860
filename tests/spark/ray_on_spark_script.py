"""A driver that starts Ray inside of its Spark application, and trains and tunes there.

    python ray_on_spark_script.py FOLDER

Prints one JSON object on its last line.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import ray
import torch

import farandole
from farandole import _spark
from farandole.spark import ray_on_spark
from farandole.tuning import Float

FOLDER = Path(sys.argv[1])
FOUND: dict[str, Any] = {"seconds": {}}
OPTIONS: dict[str, Any] = {
    "loss": "mse", "batch_size": 16, "epochs": 4, "num_workers": 2, "progress": False,
    "learning_rate": 0.05, "features": ["a", "v"],
}  # fmt: skip
CALL = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"


class Network(torch.nn.Module):
    """Two columns; kills its own process once, if it is told where to note that."""

    def __init__(self, note: str = "") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 1)
        self.note = note

    def forward(self, a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        is_first = self.note and not os.path.exists(self.note)
        if is_first and self.training and farandole.current_world().rank == 1:
            Path(self.note).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(torch.cat([a.reshape(-1, 1), v.reshape(-1, 2)], 1)).flatten()


def stage(name: str, since: float) -> float:
    FOUND["seconds"][name] = round(time.monotonic() - since, 1)
    return time.monotonic()


def weights(result: Any) -> list[float]:
    state = result.network.state_dict()
    return [float(value) for name in sorted(state) for value in state[name].flatten()]


def stranger(address: str, token: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CALL, address]
    environ = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def ray_processes() -> list[str]:
    names = ("raylet", "gcs_server", "start_ray_node")
    return [p.name() for p in psutil.process_iter() if _line(p).endswith(names) and _is_ours(p)]


def _line(process: psutil.Process) -> str:
    try:
        line = process.cmdline()
    except psutil.Error:
        return ""
    return "start_ray_node" if "ray.util.spark.start_ray_node" in line else (line or [""])[0]


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.environ().get("FARANDOLE_TEST") == os.environ["FARANDOLE_TEST"]
    except psutil.Error:
        return False


os.environ["FARANDOLE_TEST"] = str(os.getpid())  # whose processes are whose
now = time.monotonic()
spark = _spark.local_session("ray-on-spark", 3)
frame = spark.range(200).selectExpr(
    "double(id % 7) / 7 AS a",
    "array(double(id % 11) / 11, double(id) / 200) AS v",
    "double(id % 7) / 7 - double(id) / 100 AS label",
)
now = stage("spark", now)
on_spark = farandole.train(Network(), frame, engine="spark", **OPTIONS)
now = stage("train on spark", now)
before = dict(os.environ)
try:
    with ray_on_spark(spark, workers=2) as address:
        now = stage("start", now)
        FOUND["cpus"] = ray.cluster_resources()["CPU"]
        FOUND["nodes"] = sum(node["Alive"] for node in ray.nodes())
        FOUND["mode"] = os.environ["RAY_AUTH_MODE"]
        FOUND["processes inside"] = len(ray_processes())
        refused = stranger(address, "f" * 64)
        FOUND["stranger"] = [refused.returncode, refused.stderr[-2000:]]
        try:
            with ray_on_spark(spark, workers=1):
                pass
        except farandole.errors.InputError as error:
            FOUND["second"] = str(error)
        now = stage("strangers", now)
        on_ray = farandole.train(Network(), frame, engine="ray", **OPTIONS)
        FOUND["weights"] = [weights(on_spark), weights(on_ray)]
        now = stage("train", now)
        killed = farandole.train(
            Network(str(FOLDER / "killed")), frame, engine="ray",
            checkpoint_dir=FOLDER / "checkpoints", checkpoint_steps=5, **OPTIONS,
        )  # fmt: skip
        FOUND["weights"].append(weights(killed))
        now = stage("killed", now)
        bad = frame.selectExpr("if(label < -1.5, raise_error('a bad row'), a) AS a", "v", "label")
        try:
            farandole.train(Network(), bad, engine="ray", **OPTIONS)
        except Exception as error:
            FOUND["bad row"] = [type(error).__name__, str(error)]
        now = stage("bad row", now)
        study = farandole.tune(
            Network, {"learning_rate": Float(1e-3, 1e-1, log=True)}, frame, trials=3,
            metric="validation_loss", validation=0.25, engine="ray", loss="mse", epochs=2,
            features=["a", "v"], progress=False,
        )  # fmt: skip
        FOUND["trials"] = study.counts["complete"]
        now = stage("tune", now)
        FOUND["spark beside"] = spark.range(100).count()
        raise KeyError("of the user's own")
except KeyError as error:
    FOUND["raised"] = str(error)
now = stage("end", now)
FOUND["changed"] = sorted(
    name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)
)
FOUND["is connected"] = ray.is_initialized()
FOUND["processes after"] = ray_processes()
FOUND["slots after"] = spark.range(3).repartition(3).rdd.barrier().mapPartitions(list).count()
FOUND["folders"] = [str(path) for path in Path("/tmp").glob(f"ray-{address.rpartition(':')[2]}-*")]
spark.stop()
print(json.dumps(FOUND))
