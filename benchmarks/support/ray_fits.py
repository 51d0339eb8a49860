"""Fits on Ray: ours, and Ray Train's with Ray Data, on the same files."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import farandole

SHUFFLED = 10_000
"""Rows of Ray Data's buffer, out of which a worker draws at random."""


def start(cores: int) -> Any:
    """A Ray with a core for each worker, and one for Ray Data."""
    import ray

    from farandole.engines.ray_cluster import start_ray

    start_ray(ray, num_cpus=cores + 1, object_store_memory=1 << 30)
    return ray


def our_fit(network: nn.Module, data: Any, workers: int, **options: Any) -> dict[str, float]:
    """Ours: seconds by phase. `data` is a path, or a `ray.data.Dataset`."""
    begin = time.perf_counter()
    result = farandole.train(
        network, data, num_workers=workers, engine="ray", progress=False, **options
    )
    return {"total": time.perf_counter() - begin, **result.seconds}


def ray_train_fit(
    make: Callable[[], nn.Module], path: str, workers: int, epochs: int, batch: int, rate: float
) -> float:
    """Ray Train with Ray Data: the same network, optimizer, batches and epochs."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def loop() -> None:
        torch.set_num_threads(1)
        model = ray.train.torch.prepare_model(make())
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
        shard = ray.train.get_dataset_shard("train")
        for _ in range(epochs):
            for rows in shard.iter_batches(
                batch_size=batch // workers,
                batch_format="numpy",
                local_shuffle_buffer_size=SHUFFLED,
            ):
                x = torch.from_numpy(np.stack(rows["features"]).astype(np.float32))
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), torch.as_tensor(rows["label"]))
                loss.backward()
                optimizer.step()

    begin = time.perf_counter()
    TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name=f"fit-{time.time_ns()}"),
        datasets={"train": ray.data.read_parquet(path)},
    ).fit()
    return time.perf_counter() - begin
