"""The estimator on a Spark Connect server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from tests.engines.test_remote_integration import check, drive
from tests.spark.connect import tuned
from tests.spark.samples import classes, frame, small_network

from farandole.spark import TorchEstimator
from farandole.spark.classification import MultilayerPerceptronClassifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.connect, pytest.mark.integration]


@pytest.mark.exhaustive  # a server, for minutes
@pytest.mark.timeout(240)
def test_connect_does_as_classic_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    run, shown = drive("connect", tmp_path, seconds=200)
    check(run, shown)
    assert run["huge failure"]["rank"] == 1
    assert run["huge failure"]["text"].rstrip().endswith("boom")
    found = json.loads((tmp_path / "result.json").read_text())

    classic = TorchEstimator(
        network=small_network(), epochs=2, batchSize=32, learningRate=0.05, seed=7, progress=False
    ).fit(frame(spark))
    assert classic.steps is not None
    np.testing.assert_allclose(found["losses"], classic.steps["loss"], rtol=0, atol=1e-5)

    here = tuned(frame(spark), tmp_path / "classic")
    np.testing.assert_allclose(found["tuned"]["spark"], here["spark"], rtol=1e-6)
    # Trials number rows by their place, and the two sessions partition them differently.
    np.testing.assert_allclose(found["tuned"]["torch"], here["torch"], rtol=0.1)

    network = small_network()
    network.load_state_dict({name: torch.tensor(v) for name, v in found["state"].items()})
    with torch.no_grad():
        scores = network(torch.tensor(classes()[0]))
    np.testing.assert_allclose(found["raw"], scores, rtol=0, atol=1e-6)
    with torch.no_grad():
        hidden = small_network()[:2](torch.tensor(classes()[0]))
    np.testing.assert_allclose(found["hidden"], hidden, rtol=0, atol=1e-6)
    assert found["photos"] == [["an empty file", None], [None, 4]]
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
