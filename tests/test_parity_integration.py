"""The same rows and the same seed give the same network on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import farandole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 6)).astype(np.float32)
    lists = pa.array(list(features), pa.list_(pa.float32()))
    return pa.table({"features": lists, "label": (features.sum(1) > 0).astype(np.int64)})


def weights(data: Any, engine: str) -> torch.Tensor:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    options: Any = {"epochs": 2, "batch_size": 32, "seed": 5, "progress": False}
    result = farandole.train(network, data, num_workers=2, engine=engine, **options)
    return torch.cat([each.detach().flatten() for each in result.network.parameters()])


def test_parquet_files_give_one_network_on_three_engines(
    spark: SparkSession, ray_cluster: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(table(), path, row_group_size=120)
    local = weights(path, "local")
    for engine in ("spark", "ray"):
        torch.testing.assert_close(weights(path, engine), local, atol=1e-6, rtol=0)


def test_a_dataframe_and_a_data_set_give_one_network(spark: SparkSession, ray_cluster: Any) -> None:
    frame = spark.createDataFrame(table())
    on_spark = weights(frame, "spark")
    for data in (ray_cluster.data.from_arrow(table()), frame):
        torch.testing.assert_close(weights(data, "ray"), on_spark, atol=1e-6, rtol=0)
