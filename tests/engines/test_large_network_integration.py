"""Networks larger than what the JVM of a Spark driver has room for, with Spark's own defaults."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive, pytest.mark.timeout(420)]

SCRIPT = """
import sys
import numpy as np, torch
from pyspark.sql import SparkSession
from torch import nn
import farandole

builder = SparkSession.builder.config("spark.ui.enabled", "false")
builder = builder.remote("local[2]") if sys.argv[1] == "connect" else builder.master("local[2]")
session = builder.getOrCreate()
torch.manual_seed(0)
rows, workers = int(sys.argv[2]), int(sys.argv[3])
network = nn.Sequential(nn.Embedding(rows, 64), nn.Linear(64, 2))
city, label = np.arange(64), np.arange(64) % 2
frame = session.createDataFrame([(int(a), int(b)) for a, b in zip(city, label)], ["city", "label"])
result = farandole.train(network, frame, optimizer="sgd", learning_rate=0.5, epochs=1,
                         batch_size=64, num_workers=workers, encrypt=sys.argv[1] == "connect",
                         progress=False)
assert "spark.driver.memory" not in dict(session.conf.getAll)  # 1 GB
nn.functional.cross_entropy(network(torch.from_numpy(city)), torch.from_numpy(label)).backward()
torch.optim.SGD(network.parameters(), 0.5).step()
for name, tensor in network.state_dict().items():
    torch.testing.assert_close(result.network.state_dict()[name], tensor)
assert session.range(3).count() == 3  # the session is alive
print("the same as plain torch")
"""


@pytest.mark.parametrize("kind", ["classic", pytest.param("connect", marks=pytest.mark.connect)])
def test_weights_of_300_megabytes_come_home_with_default_memory(kind: str) -> None:
    train_and_compare(kind, rows=1_200_000, workers=2, seconds=400)  # 307 MB


@pytest.mark.soak
@pytest.mark.timeout(1300)
@pytest.mark.skipif(
    psutil.virtual_memory().available < 16e9, reason="needs 16 GB: the network is there six times"
)
def test_weights_of_2_gigabytes_come_home_with_default_memory() -> None:
    train_and_compare("classic", rows=8_400_000, workers=1, seconds=1200)  # 2.15 GB


def train_and_compare(kind: str, rows: int, workers: int, seconds: float) -> None:
    command = [sys.executable, "-c", SCRIPT, kind, str(rows), str(workers)]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the same as plain torch" in done.stdout
