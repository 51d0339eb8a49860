"""An estimator as a training: which params go along, under which names, and which can't."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.spark.samples import table
from torch import nn

from farandole.errors import InputError
from farandole.keras_models import require_torch_backend
from farandole.spark import KerasEstimator, TorchEstimator
from farandole.tuning import Choice, Float, tune


def estimator(**params: Any) -> TorchEstimator:
    given: dict[str, Any] = {"network": nn.Linear(4, 3), "epochs": 1, "validationFraction": 0.5}
    return TorchEstimator(**{**given, **params})


def test_all_that_is_set_goes_along() -> None:
    training, space = estimator(
        featuresCols=["a", "b"], labelCol="y", weightCol="w", loss="mse", batchSize=7, seed=3
    ).asTraining({"learningRate": [0.1]})
    assert space == {"learningRate": [0.1]}
    options = training.options
    assert (options["features"], options["label"], options["weight"]) == (["a", "b"], ["y"], "w")
    assert (options["loss"], options["batch_size"], options["seed"]) == ("mse", 7, 3)
    assert options["validation"] == 0.5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"numWorkers": 2}, "workers_per_trial=2"),
        ({"checkpointDir": "/tmp/x"}, "checkpoints"),
        ({"observer": print}, "observer"),
        ({"trace": "t.json"}, "trace"),
        ({"initialWeights": "model"}, "farandole.load"),
    ],
)
def test_what_a_trial_has_no_use_for_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimator(**params).asTraining({"learningRate": [0.1]})


@pytest.mark.parametrize("name", ["featuresCol", "numWorkers", "predictionCol"])
def test_what_all_trials_share_is_no_part_of_a_space(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}.*can't be tuned"):
        estimator().asTraining({"optimizer": Choice({"adam": {}, "sgd": {name: ["x"]}})})


def test_names_of_params_stay_in_the_study() -> None:
    narrow, wide = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    study = tune(
        estimator(progress=False),
        {
            "network": [narrow, wide],
            "optimizer": Choice({"adam": {}, "sgd": {"clipNorm": Float(1.0, 2.0, step=1.0)}}),
            "batchSize": 40,
        },
        table(),
        metric=["validation_loss", "parameters"],
        sampler="grid",
        parallelism=1,
        engine="local",
        progress=False,
    )
    shown = study.trials_dataframe()
    assert study.counts["complete"] == 6
    assert sorted(shown["sgd.clipNorm"].dropna()) == [1.0, 1.0, 2.0, 2.0]
    assert sorted(shown["parameters"]) == [15] * 3 + [43] * 3


def test_a_function_of_a_trial_uses_the_names_of_params() -> None:
    study = tune(
        estimator(progress=False),
        lambda trial: {"learningRate": trial.suggest_float("rate", 0.01, 0.1), "epochs": 2},
        table(),
        trials=1,
        parallelism=1,
        engine="local",
        progress=False,
    )
    assert study.best_params["epochs"] == len(study.result.history) == 2
    assert np.isfinite(study.best_value)


def test_callbacks_go_along_and_each_trial_has_its_own() -> None:
    keras = require_torch_backend()

    class TwoEpochs(keras.callbacks.Callback):  # type: ignore[misc]
        seen = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seen += 1
            self.model.stop_training = self.seen == 2

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    callback = TwoEpochs()
    study = tune(
        KerasEstimator(model=model, epochs=5, callbacks=[callback], progress=False),
        {"batchSize": [40, 60]},
        table(),
        metric="train_loss",
        sampler="grid",
        parallelism=1,
        engine="local",
        progress=False,
    )
    assert study.counts["complete"] == 2
    assert len(study.result.history) == 2
    assert study.trials_dataframe()["row_epochs"].tolist() == [2 * 120, 2 * 120]
    assert callback.seen == 0
