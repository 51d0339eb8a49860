from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole.engines import LocalEngine
from farandole.errors import InputError, NotEnoughSlots

pytestmark = pytest.mark.integration


def table(rows: int = 600) -> pa.Table:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 6)).astype(np.float32)
    return pa.table({"features": list(features), "label": (features.sum(1) > 0).astype(np.int64)})


def weights(data: Any, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    result = farandole.train(
        network, data, epochs=2, batch_size=32, seed=5, progress=False, **options
    )
    return torch.cat([each.detach().flatten() for each in result.network.parameters()])


def test_a_data_set_gives_one_network_for_any_workers_and_blocks(ray_cluster: Any) -> None:
    rows = table()
    many = ray_cluster.data.from_arrow([rows.slice(start, 70) for start in range(0, 600, 70)])
    alone = weights(ray_cluster.data.from_arrow(rows), num_workers=1)
    torch.testing.assert_close(weights(many, num_workers=2), alone, atol=1e-6, rtol=0)


def test_references_are_read_as_the_table_they_make(ray_cluster: Any) -> None:
    rows = table()
    frame = pd.DataFrame({"features": rows["features"].to_pylist(), "label": rows["label"]})
    arrow = [ray_cluster.put(rows.slice(0, 250)), ray_cluster.put(rows.slice(250))]
    local = weights(rows, engine="local")
    torch.testing.assert_close(weights(arrow, num_workers=2), local, atol=1e-6, rtol=0)
    pandas = weights(ray_cluster.put(frame), num_workers=1, shuffle=False)
    expected = weights(frame, engine="local", shuffle=False)
    torch.testing.assert_close(pandas, expected, atol=1e-6, rtol=0)


def test_tensors_and_an_error_of_the_user_s_own(ray_cluster: Any) -> None:
    images = ray_cluster.data.from_numpy(np.ones((40, 6), np.float32))
    images = images.rename_columns({"data": "features"})

    def label(batch: dict[str, Any]) -> dict[str, Any]:
        if (batch["features"] > 2).any():
            raise LookupError("too large")
        return {**batch, "label": np.arange(len(batch["features"])) % 2}

    assert weights(images.map_batches(label), num_workers=1).isfinite().all()
    large = images.map_batches(lambda batch: {"features": batch["features"] * 3}).map_batches(label)
    with pytest.raises(Exception, match="too large"):
        weights(large, num_workers=1)


def test_blocks_of_other_types_are_cast_to_those_of_the_data_set(ray_cluster: Any) -> None:
    rows = mixed(60)
    narrow = rows.slice(0, 30).cast(
        pa.schema([("a", pa.int64()), ("b", pa.float32()), ("c", pa.int32()), ("label", pa.int8())])
    )
    blocks = ray_cluster.data.from_arrow([narrow, rows.slice(30)])
    assert blocks.schema().base_schema.equals(rows.schema)
    expected = mixed_weights(ray_cluster.data.from_arrow(rows))
    for workers in (1, 2):
        found = mixed_weights(blocks, num_workers=workers)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_values_that_don_t_fit_the_type_of_the_data_set_are_refused(
    ray_cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "1.csv").write_text("x,label\n1,0\n2,1\n")
    (tmp_path / "2.csv").write_text("x,label\n1.5,0\n2.5,1\n")
    rows = ray_cluster.data.read_csv([str(tmp_path / "1.csv"), str(tmp_path / "2.csv")])
    wrong = r"Column 'x' of the data set is int64, and one of its blocks has double"
    for workers in (1, 2):
        with pytest.raises(InputError, match=wrong):
            farandole.train(nn.Linear(1, 2), rows, num_workers=workers, epochs=1, progress=False)


def mixed(rows: int) -> pa.Table:
    """Columns of four types, with values that fit narrower ones too."""
    rng = np.random.default_rng(1)
    drawn = {name: rng.integers(-3, 4, rows) for name in "abc"}
    label = (sum(drawn.values()) > 0).astype(np.int64)
    columns = {"a": drawn["a"] / 1, "b": drawn["b"] / 1, "c": drawn["c"], "label": label}
    return pa.table(columns)


def mixed_weights(data: Any, num_workers: int = 1) -> torch.Tensor:
    torch.manual_seed(0)
    options: Any = {"epochs": 2, "batch_size": 16, "seed": 5, "progress": False}
    found = farandole.train(nn.Linear(3, 2), data, num_workers=num_workers, **options)
    return torch.cat([each.detach().flatten() for each in found.network.parameters()])


def test_what_a_data_set_can_t_do_is_said(ray_cluster: Any) -> None:
    rows = ray_cluster.data.from_arrow(table(60))
    with pytest.raises(InputError, match="shuffle=False needs rows that have positions"):
        weights(rows, num_workers=1, shuffle=False)
    with pytest.raises(InputError, match="The rows are in Ray"):
        weights(rows, engine=LocalEngine())
    with pytest.raises(InputError, match="one to a list"):
        weights(ray_cluster.put([1, 2]))
    with pytest.raises(NotEnoughSlots, match="leave none of the cluster's 3 CPUs free"):
        weights(rows, num_workers=3)
