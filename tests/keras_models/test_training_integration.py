"""One worker gives what `model.fit` gives, and several give what one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.keras_models.cases import BATCH, CASES, keras
from tests.keras_models.parity import EPOCHS, HISTORY, WEIGHTS, differences, trained

from farandole import train
from farandole.training import NetworkInputs

pytestmark = pytest.mark.integration

SAMPLED = [("dense", 1), ("norm", 1), ("heads", 1), ("norm", 3)]
"""What `make test` tries: the others go by the same code, and are tried by `make test-rest`."""


def check_like_fit(name: str, workers: int) -> None:
    found = differences(name, workers)
    assert found.history <= HISTORY
    assert found.weights <= WEIGHTS


@pytest.mark.parametrize(("name", "workers"), SAMPLED)
def test_workers_give_what_fit_gives(name: str, workers: int) -> None:
    check_like_fit(name, workers)


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_every_model_on_any_number_of_workers(name: str, workers: int) -> None:
    if (name, workers) not in SAMPLED:
        check_like_fit(name, workers)


def test_weights_of_rows_and_validation_are_those_of_fit() -> None:
    case = CASES["dense"]
    weights = np.linspace(0.1, 2, len(case.labels["label"])).astype(np.float32)
    marked = np.arange(len(weights)) >= 20
    (x,), (y,) = case.features.values(), case.labels.values()
    model = case.make()
    model.compile(model.optimizer, model.loss, weighted_metrics=["accuracy"])
    plain = case.make()
    plain.compile(plain.optimizer, plain.loss, weighted_metrics=["accuracy"])
    found = plain.fit(
        x[~marked],
        y[~marked],
        sample_weight=weights[~marked],
        validation_data=(x[marked], y[marked], weights[marked]),
        epochs=EPOCHS,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    ).history
    result = train(
        model,
        {**case.table(), "weight": weights, "held": marked},
        weight="weight",
        validation="held",
        epochs=EPOCHS,
        batch_size=BATCH,
        shuffle=False,
        progress=False,
    )
    names = {"loss": "train_loss", "accuracy": "train_accuracy"}
    names |= {"val_loss": "validation_loss", "val_accuracy": "validation_accuracy"}
    for theirs, ours in names.items():
        np.testing.assert_allclose(result.history[ours], found[theirs], rtol=1e-5, err_msg=ours)


def test_the_model_itself_stays_as_it_was() -> None:
    case = CASES["dense"]
    model = case.make()
    before = model.get_weights()
    train(model, case.table(), epochs=1, progress=False)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not model.optimizer.built or int(model.optimizer.iterations) == 0


def test_what_is_given_counts_more_than_what_is_compiled() -> None:
    case = CASES["dense"]
    metrics = ["sparse_categorical_crossentropy"]
    result = trained(case, optimizer="sgd", learning_rate=0.5, metrics=metrics, epochs=1)
    assert result.history.learning_rate.tolist() == [0.5]
    assert "train_sparse_categorical_crossentropy" in result.history
    assert "train_accuracy" not in result.history
    model = case.make()
    model.compile("sgd", model.loss)
    model.optimizer.learning_rate = 0.5
    (x,), (y,) = case.features.values(), case.labels.values()
    model.fit(x, y, epochs=1, batch_size=BATCH, shuffle=False, verbose=0)
    for one, other in zip(result.network.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_subclassed_models_are_built_on_the_first_row() -> None:
    class Small(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(4, activation="relu")
            self.last = keras.layers.Dense(1)

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.last(self.hidden(inputs))

    table = pd.DataFrame({"a": np.arange(8.0), "b": np.ones(8), "label": np.arange(8.0)})
    model = Small()
    model.compile("sgd", "mse")
    result = train(model, table, epochs=2, progress=False, seed=4)
    again = train(model, table, epochs=2, progress=False, seed=4)
    assert result.signature.stacked
    assert [tuple(one.shape) for one in result.network.parameters()] == [
        (2, 4),
        (4,),
        (4, 1),
        (1,),
    ]
    assert result.history.train_loss.tolist() == again.history.train_loss.tolist()


def test_a_function_may_make_a_keras_model() -> None:
    """Else it would be a plain module: without what it is compiled with, and never in training."""

    def made(inputs: NetworkInputs) -> Any:
        layers = [keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(3, "softmax")]
        model = keras.Sequential([keras.Input((inputs.width,)), *layers])
        loss = "sparse_categorical_crossentropy"
        model.compile(keras.optimizers.SGD(0.25), loss, metrics=["accuracy"])
        return model

    table = CASES["dense"].table()
    first, again = (train(made, table, epochs=1, progress=False) for _ in range(2))
    assert first.history.learning_rate.tolist() == [0.25]
    assert first.history.train_loss.tolist() == again.history.train_loss.tolist()
    assert "train_accuracy" in first.history
    assert first.network.get_buffer("0_seed_generator_state").tolist() == [1, 1]  # it has dropped
    options = {"loss": "categorical_focal_crossentropy", "optimizer": keras.optimizers.Lion(0.1)}
    labels = np.eye(3, dtype=np.float32)[table["label"]]
    result = train(made, {**table, "label": labels}, epochs=1, progress=False, **options)
    assert result.history.learning_rate.tolist() == [0.1]


def test_seeded_dropout_draws_other_numbers_on_each_worker() -> None:
    """One row a worker, one step: a weight has moved by how many of both have kept its input."""
    layers = [keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(1, kernel_initializer="zeros")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    rows = {"features": np.ones((2, 64), np.float32), "label": np.ones(2, np.float32)}
    options = {"num_workers": 2, "batch_size": 2, "epochs": 1, "progress": False}
    kernel = next(train(model, rows, **options).network.parameters())
    kept = (kernel / kernel.max() * 2).round().int()
    assert set(kept.flatten().tolist()) == {0, 1, 2}


def test_a_checkpoint_has_the_optimizer_and_goes_on_to_the_same_weights(tmp_path: Any) -> None:
    case = CASES["lstm"]
    straight = trained(case, epochs=4)
    trained(case, epochs=2, checkpoint_dir=tmp_path)
    resumed = trained(case, epochs=4, checkpoint_dir=tmp_path)
    np.testing.assert_allclose(
        resumed.history.train_loss[2:], straight.history.train_loss[2:], rtol=1e-5
    )
    pairs = zip(resumed.network.parameters(), straight.network.parameters(), strict=True)
    for found, expected in pairs:  # the average of weights among them, which no loss shows
        torch.testing.assert_close(found, expected)
