"""TorchEstimator over a frozen backbone: the same network for any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.spark.samples import frame
from torch import nn

from farandole.spark import TorchEstimator
from farandole.training import FeaturesCached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def backbone() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5))
        return nn.Sequential(body, nn.Linear(16, 3))


def test_a_frozen_backbone_on_two_workers(spark: SparkSession, tmp_path: Path) -> None:
    network, heard = backbone(), list[object]()
    estimator = TorchEstimator(
        network=network,
        freeze="all but head",
        learningRates={"1.bias": 0.02},
        learningRate=0.1,
        epochs=3,
        numWorkers=2,
        validationFraction=0.2,
        progress=False,
        observer=heard.append,
    )
    model = estimator.fit(frame(spark))
    assert any(isinstance(event, FeaturesCached) for event in heard)
    assert "features" in model.seconds
    for name, tensor in network[0].state_dict().items():
        assert torch.equal(model.network.state_dict()[f"0.{name}"], tensor), name
    other = estimator.copy({estimator.numWorkers: 1, estimator.cacheFeatures: False})
    alone = other.fit(frame(spark))
    torch.testing.assert_close(
        model.network.get_parameter("1.weight"), alone.network.get_parameter("1.weight")
    )
    assert list(model.history["validation_loss"]) == pytest.approx(
        list(alone.history["validation_loss"]), rel=1e-4
    )
    again = TorchEstimator(network=network, freeze=["0"], learningRates={"1": 0.1})
    again.write().save(str(tmp_path / "estimator"))
    loaded = TorchEstimator.load(str(tmp_path / "estimator"))
    assert (loaded.getFreeze(), loaded.getLearningRates()) == (["0"], {"1": 0.1})


@pytest.mark.filterwarnings("ignore:All labels are")
def test_a_worker_without_rows(spark: SparkSession) -> None:
    """It learns from the others what their features look like, and keeps nobody waiting."""
    few = frame(spark).limit(1).localCheckpoint()
    estimator = TorchEstimator(
        network=backbone(), freeze="all but head", epochs=2, numWorkers=2, progress=False
    )
    with pytest.warns(UserWarning, match="nothing to do"):
        model = estimator.fit(few)
    assert "features" in model.seconds
    awake = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3))
    joint = estimator.copy({estimator.syncBatchNorm: True, estimator.timeout: 60.0})
    joint.setNetwork(awake)
    joint.setFreeze(["0"])
    with pytest.warns(UserWarning, match="nothing to do"):
        joint.fit(few)
