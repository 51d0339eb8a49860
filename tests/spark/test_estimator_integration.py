"""TorchEstimator.fit: every param does what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F
from tests.spark.samples import classes, frame, small_network, torch_losses
from torch import nn

from farandole.errors import InputError
from farandole.parallel import AllReduce
from farandole.parallel.flat_gradients import FlatGradients
from farandole.spark import TorchEstimator, TorchModel, estimator
from farandole.training.events import EpochEnded, TrainingEnded, TrainingStarted
from farandole.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def fitted(data: Any, **params: Any) -> TorchModel:
    given = {"network": small_network(), "optimizer": "sgd", "batchSize": 32, "progress": False}
    return TorchEstimator(**given | params).fit(data)


def losses_of(model: TorchModel) -> list[float]:
    assert model.steps is not None
    return list(model.steps["loss"])


ELSEWHERE = {  # not for training, or under several names
    *("featuresCol", "labelCol", "predictionCol", "probabilityCol", "rawPredictionCol"),
    *("allowPickle", "validationFraction", "thresholds", "nulls"),
}
RENAMED = {
    "featuresCols": "features",
    "labelCols": "label",
    "weightCol": "weight",
    "validationIndicatorCol": "validation",
}
ODD = {"shuffle": False, "progress": False, "restoreBest": False, "stopOnNan": False, "loss": "mse"}
ODD |= {"featuresCols": ["a", "b"], "labelCols": ["c"], "initialWeights": {"w": 1}}
ODD |= {"schedulePer": "epoch", "precision": "bfloat16", "monitor": "train_loss"}
ODD |= {"lossScope": "batch", "monitorMode": "max", "syncBatchNorm": True, "cacheFeatures": False}
ODD |= {"weightCol": "w", "validationIndicatorCol": "v", "encrypt": True, "checkpointDir": "c"}
ODD |= {"device": "cpu"}


def test_no_param_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[str, Any] = {}

    def listen(network: Any, data: Any, **options: Any) -> Any:
        heard.update(options, network=network)
        raise InterruptedError

    monkeypatch.setattr(estimator, "train", listen)
    one = TorchEstimator()
    names = [param.name for param in one.params if param.name not in ELSEWHERE]
    values = {name: ODD.get(name, 3 + number) for number, name in enumerate(names)}
    data: Any = SimpleNamespace(columns=[], schema=[], sparkSession=None)
    with pytest.raises(InterruptedError):
        TorchEstimator(**values).fit(data)
    for name, value in values.items():
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
        assert heard[RENAMED.get(name, snake)] == value, name


def test_nothing_set_says_what_to_set(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="network is not set"):
        TorchEstimator().fit(frame(spark))


def test_a_model_tells_how_it_came_about(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    network, heard = small_network(), list[object]()
    before = [parameter.clone() for parameter in network.parameters()]
    model = fitted(
        frame(spark),
        network=network,
        epochs=3,
        validationFraction=0.25,
        progress=True,
        observer=heard.append,
    )
    assert list(model.history["epoch"]) == [1, 2, 3]
    assert {"train_loss", "train_accuracy", "validation_loss"} <= set(model.history.columns)
    assert {"read", "train"} <= set(model.seconds)
    started = next(event for event in heard if isinstance(event, TrainingStarted))
    assert started.rows + started.validation_rows == 120
    assert 10 < started.validation_rows < 50
    assert sum(isinstance(event, EpochEnded) for event in heard) == 3
    assert isinstance(heard[-1], TrainingEnded)
    assert "epoch 3/3" in capfd.readouterr().err
    for mine, old in zip(network.parameters(), before, strict=True):
        assert torch.equal(mine, old)
    assert not model.network.training
    assert model.uid.startswith("TorchEstimator")
    assert model.getFeaturesCol() == "features"


def test_quiet_without_progress(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    fitted(frame(spark), epochs=2)
    assert "epoch" not in capfd.readouterr().err


def test_weights_of_rows(spark: SparkSession) -> None:
    x, y = classes()
    odd = np.arange(120) % 2 == 1
    expected, _ = torch_losses(small_network(), x[odd], y[odd], rate=0.5, epochs=3, batch=60)
    data = frame(spark).withColumn("weight", F.expr("double(2 * (id % 2))"))
    model = fitted(data, weightCol="weight", learningRate=0.5, epochs=3, batchSize=120)
    np.testing.assert_allclose(losses_of(model), expected, rtol=0, atol=1e-5)


def test_marked_rows_are_for_validation(spark: SparkSession) -> None:
    data = frame(spark).withColumn("held", F.expr("id % 4 = 0"))
    model = fitted(data, validationIndicatorCol="held", epochs=2, batchSize=90, learningRate=0.5)
    x, y = classes()
    held = np.arange(120) % 4 == 0
    expected, network = torch_losses(
        small_network(), x[~held], y[~held], rate=0.5, epochs=2, batch=90
    )
    np.testing.assert_allclose(losses_of(model), expected, rtol=0, atol=1e-5)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(network(torch.tensor(x[held])), torch.tensor(y[held]))
    assert model.history["validation_loss"].iloc[-1] == pytest.approx(loss.item(), abs=1e-5)


def test_training_goes_on_from_a_model_and_from_its_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    x, y = classes()
    expected, _ = torch_losses(small_network(), x, y, rate=0.5, epochs=4, batch=120)
    options = {"learningRate": 0.5, "batchSize": 120, "epochs": 2}
    first = fitted(frame(spark), **options)
    first.write().save(str(tmp_path / "model"))
    other = small_network(seed=9)
    for weights in (first, str(tmp_path / "model")):
        second = fitted(frame(spark), network=other, initialWeights=weights, **options)
        np.testing.assert_allclose(losses_of(second), expected[2:], rtol=0, atol=1e-5)


class FromZero(AllReduce):
    """Forgets what the network has learned."""

    def attach(
        self, network: nn.Module, world: World, example: Sequence[Any] = ()
    ) -> FlatGradients:
        for parameter in network.parameters():
            nn.init.zeros_(parameter)
        return super().attach(network, world, example)


def test_strategies(spark: SparkSession) -> None:
    model = fitted(frame(spark), strategy=FromZero(), numWorkers=2)
    assert losses_of(model)[0] == pytest.approx(math.log(3), abs=1e-6)
    with pytest.raises(InputError, match="There is no strategy 'magic'"):
        fitted(frame(spark), strategy="magic")


def test_param_maps(spark: SparkSession) -> None:
    one = TorchEstimator(network=small_network(), progress=False)
    maps = [{one.epochs: 1}, {one.epochs: 2, one.predictionCol: "guess"}]
    models = one.fit(frame(spark), maps)
    assert [len(model.history) for model in models] == [1, 2]
    assert [model.getPredictionCol() for model in models] == ["prediction", "guess"]


def test_several_labels_and_outputs(spark: SparkSession) -> None:
    data = frame(spark).selectExpr("features", "float(id) / 50 AS a", "-features[1] AS b")
    two = fitted(
        data, network=nn.Linear(4, 2), labelCols=["a", "b"], loss="mse", epochs=3, batchSize=120
    )
    x, _ = classes()
    y = np.stack([np.arange(120, dtype=np.float32) / 50, -x[:, 1]], 1)
    rows = two.transform(data).collect()
    found = np.stack([row.prediction.toArray() for row in rows])
    with torch.no_grad():
        np.testing.assert_allclose(found, two.network(torch.tensor(x)), atol=1e-6)
    assert losses_of(two)[0] > np.mean((found - y) ** 2)
    assert "probability" not in two.transform(data).columns


def test_regression_may_have_a_column_named_probability(spark: SparkSession) -> None:
    data = frame(spark).withColumn("probability", F.lit(0.5))
    model = fitted(data, network=nn.Linear(4, 1), loss="mse")
    assert model.transform(data).columns == [*data.columns, "prediction"]
