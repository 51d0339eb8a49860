"""A training on two nodes of Ray, of which one dies after the first epoch.

    python ray_nodes_script.py FOLDER

Prints one JSON object on its last line.
"""

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.cluster_utils import Cluster
from torch import nn

import farandole
from farandole.engines import RayEngine


class Slow(nn.Linear):
    """So slow that a node's end comes before that of the training."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(0.3 * self.training)
        return super().forward(rows)


def trained(**options: Any) -> list[float]:
    torch.manual_seed(0)
    rows = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
    table = pa.table({"features": list(rows), "label": rows.sum(1)})
    result = farandole.train(
        Slow(4, 1), table, loss="mse", epochs=6, batch_size=16, progress=False, allow_pickle=True,
        **options,
    )  # fmt: skip
    return torch.cat([one.detach().flatten() for one in result.network.parameters()]).tolist()


def main(folder: Path) -> dict[str, Any]:
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    second = cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    restarts: list[Any] = []

    def observer(event: Any) -> None:
        kind = type(event).__name__
        if kind == "EpochEnded" and event.epoch == 2 and not restarts:
            cluster.remove_node(second, allow_graceful=False)
        if kind == "WorkersRestarted":
            restarts.append([event.workers, event.reason])

    weights = trained(
        num_workers=2, min_workers=1, engine=RayEngine(start_timeout=20), observer=observer,
        checkpoint_dir=folder / "saved", checkpoint_steps=3, heartbeat=5, timeout=20,
    )  # fmt: skip
    ray.shutdown()
    cluster.shutdown()
    return {"restarts": restarts, "weights": weights, "calm": trained(engine="local")}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
