"""The same path for any number of workers and any layout of the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.spark.samples import (
    Ledger,
    check_epochs,
    check_order,
    classes,
    frame,
    ledger,
    small_network,
    torch_losses,
)

from farandole.spark import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration


def fit(data: DataFrame, workers: int = 2, **params: Any) -> TorchModel:
    given = {"network": small_network(), "epochs": 2, "batchSize": 32, "learningRate": 0.05}
    given |= {"numWorkers": workers, "progress": False, "seed": 7}
    return TorchEstimator(**given | params).fit(data)


@pytest.fixture(scope="module")
def model(spark: SparkSession) -> TorchModel:
    return fit(frame(spark), workers=1)


def losses_of(model: TorchModel) -> list[float]:
    assert model.steps is not None
    return list(model.steps["loss"])


def test_two_workers_walk_the_path_of_one(spark: SparkSession, model: TorchModel) -> None:
    two = fit(frame(spark), workers=2)
    assert len(losses_of(two)) == 2 * 4
    np.testing.assert_allclose(losses_of(two), losses_of(model), rtol=0, atol=1e-5)
    for mine, other in zip(two.network.parameters(), model.network.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


def test_the_seed_decides_on_the_path(spark: SparkSession, model: TorchModel) -> None:
    other = fit(frame(spark), workers=2, seed=8)
    assert np.abs(np.subtract(losses_of(other), losses_of(model))).max() > 1e-3


@pytest.mark.parametrize("layout", ["7 partitions", "sorted", "empty partitions", "parquet"])
def test_the_layout_of_the_table_does_not_matter(
    spark: SparkSession, model: TorchModel, layout: str, tmp_path: Path
) -> None:
    data = frame(spark)
    if layout == "7 partitions":
        data = data.repartition(7)
    elif layout == "sorted":
        data = data.orderBy("label", data["id"].desc())
    elif layout == "empty partitions":
        data = (
            data.repartitionByRange(5, "id")
            .where("id < 3 or id > 90")
            .union(data.where("id between 3 and 90"))
        )
    else:
        data.repartition(3).write.parquet(str(tmp_path / "rows"))
        data = spark.read.parquet(str(tmp_path / "rows"))
    np.testing.assert_allclose(losses_of(fit(data)), losses_of(model), rtol=0, atol=1e-5)


def test_full_batches_are_those_of_single_process_torch(spark: SparkSession) -> None:
    x, y = classes()
    expected, network = torch_losses(small_network(), x, y, rate=0.5, epochs=4, batch=len(x))
    uneven = frame(spark).repartitionByRange(3, "label")
    ours = fit(uneven, optimizer="sgd", learningRate=0.5, epochs=4, batchSize=len(x))
    np.testing.assert_allclose(losses_of(ours), expected, rtol=0, atol=1e-5)
    rows = ours.transform(uneven).select("features", "rawPrediction").collect()
    with torch.no_grad():
        scores = network(torch.tensor([row.features for row in rows]))
    np.testing.assert_allclose([r.rawPrediction.toArray() for r in rows], scores, atol=1e-4)


def test_unshuffled_batches_are_those_of_single_process_torch(spark: SparkSession) -> None:
    x, y = classes(130)
    expected, _ = torch_losses(small_network(), x, y, rate=0.3, epochs=2, batch=32)
    ordered = frame(spark, 130).repartition(5).orderBy("id")
    ours = fit(ordered, optimizer="sgd", learningRate=0.3, shuffle=False)
    np.testing.assert_allclose(losses_of(ours), expected, rtol=0, atol=1e-5)


def test_ledger_of_two_workers(spark: SparkSession, tmp_path: Path) -> None:
    data = frame(spark, 131).repartition(3)
    for shuffle in (True, False):
        folder = tmp_path / str(shuffle)
        folder.mkdir()
        rows = data if shuffle else data.orderBy("id")
        columns = ["features", "id"]
        fit(rows, network=Ledger(str(folder)), featuresCols=columns, shuffle=shuffle, epochs=2)
        pages = ledger(folder)
        assert len(pages) == 2
        if shuffle:
            check_epochs(pages, 131)
        else:
            check_order(pages, 131, 32)


@pytest.mark.timeout(120)
@pytest.mark.exhaustive
def test_one_to_four_workers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.four_workers", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "result.json").read_text())
    x, y = classes(131)
    expected, _ = torch_losses(small_network(), x, y, rate=0.3, epochs=2, batch=32)
    for workers, losses in found["shuffled"].items():
        np.testing.assert_allclose(losses, found["shuffled"]["1"], rtol=0, atol=1e-5)
        pages = ledger(tmp_path / f"shuffled-{workers}")
        assert len(pages) == int(workers)
        check_epochs(pages, 131)
    for workers, losses in found["ordered"].items():
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
        check_order(ledger(tmp_path / f"ordered-{workers}"), 131, 32)
    assert [*found["shuffled"], *found["ordered"]] == ["4", "3", "2", "1", "4", "3"]
