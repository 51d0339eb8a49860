"""Strategies on Spark, one after the other in the same Python workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.spark.samples import frame, small_network

from farandole.errors import InputError
from farandole.parallel import Hybrid, ParameterServer, Pipeline, Sharded, Strategy
from farandole.spark import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def fitted(spark: SparkSession, strategy: str | Strategy) -> TorchModel:
    estimator = TorchEstimator(
        network=small_network(), strategy=strategy, numWorkers=2, epochs=4, batchSize=30,
        learningRate=0.05, validationFraction=0.2, progress=False, timeout=60.0,
    )  # fmt: skip
    return estimator.fit(frame(spark))


def test_all_of_them_learn_the_same(spark: SparkSession) -> None:
    alone = fitted(spark, "allreduce")
    expected = alone.history[["train_loss", "validation_loss"]].to_numpy()
    for strategy in ("ring", ParameterServer(servers=2), Pipeline(micro_batches=2), Sharded()):
        found = fitted(spark, strategy)
        losses = found.history[["train_loss", "validation_loss"]].to_numpy()
        np.testing.assert_allclose(losses, expected, rtol=1e-4, err_msg=str(strategy))
        assert found.transform(frame(spark)).select("prediction").count() == 120
        assert found.workers is not None
        assert len(found.workers) == 2
    own_pace = fitted(spark, ParameterServer(asynchronous=True))
    assert own_pace.history["train_loss"].iloc[-1] < expected[0, 0]


def test_what_can_not_be_is_said_before_spark_does_anything(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="2 workers can't be split into 2 copies"):
        fitted(spark, Hybrid(data=2))


def test_an_estimator_keeps_its_strategy(spark: SparkSession, tmp_path: Path) -> None:
    strategy = Hybrid(data=2, inner=Pipeline(micro_batches=2, split_at=["2"]))
    for number, saved in enumerate((strategy, "ring")):
        estimator = TorchEstimator(network=small_network(), strategy=saved)
        estimator.write().save(str(tmp_path / str(number)))
        assert TorchEstimator.load(str(tmp_path / str(number))).getStrategy() == saved
