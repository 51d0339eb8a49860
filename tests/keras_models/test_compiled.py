"""What can't train a Keras model is refused before anything begins, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from tests.keras_models.cases import CASES, keras

from farandole import train
from farandole.errors import InputError
from farandole.keras_models import training_options
from farandole.parallel import ParameterServer, Sharded

losses, optimizers = keras.losses, keras.optimizers


def refused(reason: str, **options: Any) -> None:
    case = CASES["dense"]
    model = options.pop("model", None) or case.make()
    with pytest.raises(InputError, match=reason):
        train(model, case.table(), progress=False, **options)


@pytest.mark.parametrize("strategy", ["pipeline", "naive"])
def test_strategies_that_split_a_model_by_layers(strategy: str) -> None:
    refused("order its layers are called", strategy=strategy, num_workers=2)


def test_strategies_that_split_tensors() -> None:
    refused("need whole tensors", strategy="sharded", num_workers=2)
    refused("of all variables together", strategy=Sharded(stage=1), num_workers=2)
    asynchronous = ParameterServer(asynchronous=True)
    refused("count updates of all workers", strategy=asynchronous, num_workers=2)


def test_options_that_keras_decides_itself() -> None:
    refused("one learning rate", learning_rates={"0_kernel": 0.1})
    refused("gradient_accumulation_steps", accumulation=2)
    refused("stay frozen", freeze=["dense"], unfreeze_at=2, epochs=3)
    refused("no layer 'dens'", freeze=["dens"])
    refused("LossScaleOptimizer", optimizer=optimizers.LossScaleOptimizer(optimizers.Adam()))
    refused("loss_weights must be numbers", loss_weights=["accuracy"])
    refused("reduction='sum'", loss=losses.MeanSquaredError(reduction="sum"))
    refused("PearsonCorrelation", metrics=[keras.metrics.PearsonCorrelation()])
    decaying = optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    refused("schedule of its own", optimizer=decaying, schedule="cosine")


def test_names_that_keras_does_not_know() -> None:
    refused("no loss 'mean_square'", loss="mean_square")
    refused("no metric 'accurracy'", metrics=["accurracy"])


def test_models_that_are_not_compiled_or_have_steps_of_their_own() -> None:
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    refused("isn't compiled", model=plain)

    class Own(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return {}

    refused("train_step of its own", model=Own())


def test_a_frozen_layer_keeps_its_weights() -> None:
    case = CASES["dense"]
    model = case.make()
    first = model.layers[0]
    result = train(model, case.table(), freeze=[first.name], epochs=1, progress=False)
    found = result.network.model
    assert (found.layers[0].get_weights()[0] == first.get_weights()[0]).all()
    assert not (found.layers[-1].get_weights()[0] == model.layers[-1].get_weights()[0]).all()
    assert first.trainable


def test_lists_go_to_outputs_by_their_order() -> None:
    model = CASES["heads"].make()
    options = training_options(model, {"loss": ["sparse_categorical_crossentropy", "mae"]})
    assert [(name, one.head) for name, one in options["loss"].items()] == [
        ("kind", "probabilities"),
        ("size", "identity"),
    ]
    with pytest.raises(InputError, match="3 entries for the 2 outputs"):
        training_options(model, {"loss": ["mse", "mse", "mse"]})
