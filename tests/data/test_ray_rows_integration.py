from __future__ import annotations

import io
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole.data.ray_rows import collected, ray_data
from farandole.data.schema import KEY
from farandole.engines import LocalEngine
from farandole.engines import ray_cluster as cluster
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


def test_a_data_set_is_collected_in_one_order(ray_cluster: Any) -> None:
    rows = mixed(90).append_column("text", [[None if n == 0 else str(n) for n in range(90)]])
    rows = rows.append_column("hour", pa.array(range(90), pa.time32("s")))  # it has no hash
    tables = [
        collected(ray_cluster.data.from_arrow([rows.slice(n, size) for n in range(0, 90, size)]))
        for size in (90, 17)
    ]
    backwards = rows.take(list(reversed(range(90))))
    tables.append(collected(ray_cluster.data.from_arrow(backwards)))
    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0].sort_by("hour").equals(rows.combine_chunks())
    assert tables[0].schema.equals(rows.schema)


def test_trials_run_where_the_rows_are(ray_cluster: Any) -> None:
    references = [ray_cluster.put(mixed(30))]
    trials = farandole.run_many(place, data=references, num_workers=1, progress=False)
    assert trials.values == [(True, 30)]
    data = ray_cluster.data.from_arrow(mixed(30))
    options: Any = {"trials": 1, "parallelism": 1, "progress": False, "direction": "maximize"}
    study = farandole.tune(lambda rows, x: place(rows)[0] * x, {"x": [2]}, data, **options)
    assert study.best_value == 2


def place(rows: pa.Table) -> tuple[bool, int]:
    """Whether this is an actor of Ray's, and how many rows it has."""
    ray = sys.modules.get("ray")
    is_actor = ray is not None and ray.get_runtime_context().get_actor_id() is not None
    return is_actor, rows.num_rows


def test_only_the_first_rows_of_references_come_to_the_driver(ray_cluster: Any) -> None:
    rows = mixed(5000)
    parts = [ray_cluster.put(each) for each in (rows.slice(0, 0), rows)]
    data = ray_data(parts, shuffle=True)
    fetched: list[Any] = []
    get = ray_cluster.get
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_cluster, "get", lambda refs: fetched.append(refs) or get(refs))
        found = data.first_rows(["c", "a"], wait=False)
    assert not any(each is part for each in fetched for part in parts)
    assert found is not None
    expected = rows.select(["c", "a"]).slice(0, 32)
    assert pa.Table.from_batches([found]).drop_columns([KEY]).equals(expected.combine_chunks())
    assert found[KEY].to_pylist() == list(range(32))
    assert len(pickle.dumps(get(fetched[0]))) < 2000  # and not all others with them


def test_references_to_tables_of_other_columns_are_refused(ray_cluster: Any) -> None:
    one = pa.table({"x": [1], "y": [1]})
    for other, said in (
        (pa.table({"x": [1], "y": [1.0]}), "'y' of int64 in table 0, where table 2 has 'y' of dou"),
        (one.select(["x"]), "'y' of int64 in table 0, where table 2 has no column"),
        (one.select(["y", "x"]), "'x' of int64 in table 0, where table 2 has 'y' of int64"),
    ):
        with pytest.raises(InputError, match=said):
            ray_data([ray_cluster.put(each) for each in (one, one, other)], shuffle=True)


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


class InterruptingStream(io.StringIO):
    """Presses Ctrl-C when workers say that no rows come."""

    def write(self, text: str) -> int:
        if "no rows have come" in text and "no rows have come" not in self.getvalue():
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


@pytest.mark.exhaustive
def test_rows_that_wait_for_what_the_cluster_has_not(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ray_cluster.data.from_arrow(table(60)).map_batches(lambda batch: batch, num_cpus=2)
    stream = InterruptingStream()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(KeyboardInterrupt):
        weights(rows, num_workers=2)
    assert "] farandole: no rows have come for 30 s. Ray computes them" in stream.getvalue()


def test_what_a_data_set_can_t_do_is_said(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ray_cluster.data.from_arrow(table(60))
    with pytest.raises(InputError, match="shuffle=False needs rows that have positions"):
        weights(rows, num_workers=1, shuffle=False)
    with pytest.raises(InputError, match="The rows are in Ray"):
        weights(rows, engine=LocalEngine())
    with pytest.raises(InputError, match="one to a list"):
        weights(ray_cluster.put([1, 2]))
    address = ray_cluster.get_runtime_context().gcs_address
    monkeypatch.setattr(cluster, "_started", address)  # by us, so it can't grow
    with pytest.raises(NotEnoughSlots, match="leave none of the cluster's 3 CPUs free"):
        weights(rows, num_workers=3)
