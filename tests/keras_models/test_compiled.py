"""What a compiled model says is taken over; what can't be is refused at once, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.keras_models.cases import CASES, keras

from farandole import train
from farandole.errors import InputError
from farandole.keras_models import KerasNetwork, training_options
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
    refused("aren't cached", cache_features=True)
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
    dense, (left, right) = keras.layers.Dense(1), (keras.Input((4,)), keras.Input((4,)))
    alike = keras.Model([left, right], [dense(left), dense(right)])  # both are called "dense"
    found = training_options(alike, {"loss": ["mse", "mae"]})["loss"]
    assert tuple(found) == KerasNetwork(alike).output_names == ("output_0", "output_1")


def squared(labels: Any, outputs: Any) -> Any:
    labels = keras.ops.reshape(keras.ops.cast(labels, "float32"), (-1, 1))
    return keras.ops.mean(keras.ops.square(labels - outputs), axis=-1)


LOGITS = losses.BinaryCrossentropy(from_logits=True)


def answering(outputs: int, activation: str | None, loss: Any) -> Any:
    """A functional model with one input, and with an output that is known."""
    inputs = keras.Input((1,))
    last = keras.layers.Dense(outputs, activation, kernel_initializer="ones")
    model = keras.Model(inputs, last(inputs))
    model.compile(optimizers.SGD(1e-9), loss)
    return model


ROWS = {"features": np.array([[-2.0], [0.1]], np.float32), "label": np.array([0, 1])}


@pytest.mark.parametrize(
    ("task", "activation", "loss", "head"),
    [
        ("binary", "sigmoid", "binary_crossentropy", "probability"),
        ("multilabel", "sigmoid", "binary_crossentropy", "probability"),
        ("binary", "sigmoid", squared, "probability"),
        ("auto", "sigmoid", "crossentropy", "probability"),
        ("classification", None, LOGITS, "sigmoid"),
    ],
)
def test_outputs_are_probabilities_unless_the_loss_takes_logits(
    task: str, activation: str | None, loss: Any, head: str
) -> None:
    result = train(answering(1, activation, loss), ROWS, task=task, epochs=1, progress=False)
    assert result.signature.head == head
    found = result.predictor(ROWS["features"])
    assert found.prediction.tolist() == [0, 1]
    expected = torch.tensor([-2.0, 0.1]).sigmoid()
    np.testing.assert_allclose(found.probability[:, 1], expected, rtol=1e-5)


def test_a_loss_of_ones_own_over_classes() -> None:
    result = train(answering(2, "softmax", squared), ROWS, epochs=1, progress=False)
    assert result.signature.head == "probabilities"


def test_several_answers_of_yes_or_no_are_given_as_logits() -> None:
    table = {**ROWS, "label": np.eye(2, dtype=np.float32)}
    model = answering(2, "sigmoid", "binary_crossentropy")
    with pytest.raises(InputError, match="from_logits=True"):
        train(model, table, task="multilabel", progress=False)


def test_a_constraint_needs_an_optimizer_of_keras() -> None:
    bounded = keras.layers.Dense(1, kernel_constraint="non_neg")
    model = keras.Sequential([keras.Input((4,)), bounded])
    model.compile("sgd", "mse")
    refused("has a constraint", model=model, optimizer=torch.optim.AdamW)
    refused("has a constraint", model=model, optimizer="lbfgs")
    bounded.trainable = False
    assert training_options(model, {"optimizer": "lbfgs"})["optimizer"] == "lbfgs"


@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras.layers.Dropout(0.5),
        lambda: keras.layers.BatchNormalization(),
        lambda: keras.layers.GaussianNoise(1.0),
    ],
)
def test_solvers_need_a_function_of_the_weights_alone(layer: Any) -> None:
    layers = [layer(), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", "sparse_categorical_crossentropy")
    refused("other results in every batch", model=model, optimizer="lbfgs", epochs=1)


def test_solvers_take_recurrent_layers_without_dropout() -> None:
    case = CASES["lstm"]
    train(case.make(), case.table(), optimizer="lbfgs", epochs=1, progress=False)
    dropping = [keras.layers.LSTM(2, dropout=0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((5, 3)), *dropping])
    with pytest.raises(InputError, match="other results in every batch"):
        train(model, case.table(), loss="mse", optimizer="lbfgs", progress=False)


def test_an_optimizer_that_has_made_steps_begins_anew() -> None:
    case = CASES["dense"]
    model = case.make()
    (x,), (y,) = case.features.values(), case.labels.values()
    model.fit(x, y, epochs=1, verbose=0)
    with pytest.warns(UserWarning, match="has made steps already"):
        training_options(model, {})


def test_float16_would_need_a_scaled_loss() -> None:
    inputs = keras.Input((1,))
    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model = keras.Model(inputs, keras.layers.Dense(1, dtype=policy)(inputs))
    model.dtype_policy = policy
    model.compile("adam", "mse")
    for given in ({}, {"optimizer": "sgd"}, {"learning_rate": 0.1}):
        with pytest.raises(InputError, match=r"^LossScaleOptimizer"):
            training_options(model, given)


def test_variables_without_weight_decay() -> None:
    model = answering(1, None, "mse")
    network = KerasNetwork(model)
    optimizer = optimizers.SGD(0.5, weight_decay=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    torch.nn.init.ones_(network.get_parameter("1_bias"))
    for one in network.parameters():
        one.grad = torch.zeros_like(one)
    options = training_options(model, {"optimizer": optimizer, "learning_rate": 0.25})
    options["optimizer"].made(list(network.parameters()), 0.25, network).step()
    assert [one.item() for one in network.parameters()] == [0.75, 1.0]
    optimizer.exclude_from_weight_decay(var_list=[model.variables[1]])
    with pytest.raises(InputError, match="var_names"):
        training_options(model, {"optimizer": optimizer})


def test_a_weighted_metric_of_the_same_name_gets_another() -> None:
    model = answering(1, "sigmoid", "binary_crossentropy")
    weighted = ["accuracy", "mae"]
    model.compile("sgd", model.loss, metrics=["accuracy"], weighted_metrics=weighted)
    options = training_options(model, {"cache_features": False})
    names = [(one.name, one.is_weighted) for one in options["metrics"]]
    assert names == [("accuracy", False), ("weighted_accuracy", True), ("mae", True)]
    assert "cache_features" not in options
