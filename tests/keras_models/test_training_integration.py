"""One worker gives what `model.fit` gives, and several give what one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.keras_models.cases import BATCH, CASES, Case, keras

from farandole import train

pytestmark = pytest.mark.integration
EPOCHS = 3

SAMPLED = [("dense", 1), ("norm", 1), ("heads", 1), ("norm", 3)]
"""What `make test` tries: the others go by the same code, and are tried by `make test-rest`."""


def trained(case: Case, **options: Any) -> Any:
    return train(
        case.make(),
        case.table(),
        label=list(case.labels),
        epochs=options.pop("epochs", EPOCHS),
        batch_size=BATCH,
        shuffle=False,
        progress=False,
        **{**case.options, **options},
    )


def check_like_fit(name: str, workers: int) -> None:
    history, weights = CASES[name].fitted(EPOCHS)
    result = trained(CASES[name], num_workers=workers)
    for key, values in history.items():
        np.testing.assert_allclose(result.history[f"train_{key}"], values, rtol=1e-5, err_msg=key)
    found = result.network.model.get_weights()
    for one, other in zip(found, weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


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


def test_a_checkpoint_has_the_optimizer_and_goes_on_to_the_same_weights(tmp_path: Any) -> None:
    case = CASES["lstm"]
    straight = trained(case, epochs=4)
    trained(case, epochs=2, checkpoint_dir=tmp_path)
    resumed = trained(case, epochs=4, checkpoint_dir=tmp_path)
    np.testing.assert_allclose(
        resumed.history.train_loss[2:], straight.history.train_loss[2:], rtol=1e-5
    )
