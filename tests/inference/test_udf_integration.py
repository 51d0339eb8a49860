"""How often a network is loaded and called under Spark."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.spark.samples import frame, small_network
from torch import nn

from farandole.artifact import Artifact, Signature
from farandole.spark import TorchModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


class Counting(nn.Module):
    """Notes each time that it is unpickled, and how many rows it sees."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.layers = small_network()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._note("loads", os.getpid())

    def _note(self, name: str, number: int) -> None:
        with open(os.path.join(self.folder, name), "a") as file:
            file.write(f"{number}\n")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._note("rows", len(x))
        scores: torch.Tensor = self.layers(x)
        return scores


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def test_loaded_once_a_worker_and_each_row_predicted_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    signature = Signature(
        features=("features",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3
    )
    model = TorchModel(Artifact(Counting(str(tmp_path)), signature))
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "16")
    try:
        for _ in range(2):
            found = model.transform(frame(spark).repartition(4))
            assert len(found.select("rawPrediction", "probability", "prediction").collect()) == 120
    finally:
        spark.conf.set(setting, str(before))
    rows, loads = numbers(tmp_path / "rows"), numbers(tmp_path / "loads")
    assert sum(rows) == 2 * 120
    assert max(rows) <= 16
    assert set(Counter(loads).values()) == {1}
    assert os.getpid() not in loads
