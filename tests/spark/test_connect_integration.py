"""The estimator on a Spark Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from tests.spark.samples import classes, frame, small_network

from farandole.spark import TorchEstimator
from farandole.spark.classification import MultilayerPerceptronClassifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.connect, pytest.mark.integration]


@pytest.mark.timeout(150)
def test_connect_does_as_classic_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    # What a classic session has put there would make the new process join it.
    own = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect", str(tmp_path)],
        env={name: value for name, value in os.environ.items() if name not in own},
        capture_output=True,
        text=True,
        timeout=140,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "result.json").read_text())

    classic = TorchEstimator(
        network=small_network(), epochs=2, batchSize=32, learningRate=0.05, seed=7, progress=False
    ).fit(frame(spark))
    assert classic.steps is not None
    np.testing.assert_allclose(found["losses"], classic.steps["loss"], rtol=0, atol=1e-5)

    network = small_network()
    network.load_state_dict({name: torch.tensor(v) for name, v in found["state"].items()})
    with torch.no_grad():
        scores = network(torch.tensor(classes()[0]))
    np.testing.assert_allclose(found["raw"], scores, rtol=0, atol=1e-6)
    without, with_learning = found["tuned"]
    assert with_learning > without
    assert "3 workers" in found["slots"]
    assert "'label': " in found["label"]
    assert "outside of 0 … 2" in found["label"]

    rows = frame(spark).select(array_to_vector("features").alias("features"), "label")
    perceptron = MultilayerPerceptronClassifier(
        layers=[4, 5, 3], maxIter=10, seed=1, blockSize=1000
    ).fit(rows.coalesce(1))
    objective = perceptron.summary().objectiveHistory
    np.testing.assert_allclose(found["objective"], objective, rtol=1e-6)
    assert found["accuracy"] == perceptron.evaluate(rows).accuracy
